"""Derives the recipe of a run from the class and the parameter groups of a script's optimizer (docs/rules.md).

The table `_TRANSLATIONS` says which classes are translated, to what, and with which factor of their learning rate. An
optimizer that is not in it, or that uses an option without a translation, makes its own steps, and its commits are
"movement". A subclass of a translated class is not translated, because it may override `step`.

Where matrices are orthogonalised ("spectral"), the worker takes the optimizer's momentum before the direction, and the
server's rule has none. With any other translation the server's rule gem applies momentum, 0.9, and corrects it for
staleness.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Muon, NAdam, Optimizer, RAdam

from gem_core.layout import TensorKind
from gem_core.recipe import MAX_GROUPS, Recipe, RecipeKind, of_gradients
from gem_worker.gradient_transform import BETA2, EPSILON
from gem_worker.hidden_matrices import has_trained_embedding, hidden_matrices
from gem_worker.model_tensors import ModelTensor


@dataclass(frozen=True, slots=True)
class _Translation:
    """The translation of an optimizer's class.

    Attributes:
        kind: what a commit is made of.
        factor: the rate of a commit divided by the optimizer's learning rate (for SGD, divided by its rate over
            1 - momentum). One third compensates for the mean pi of one worker, which is 3.1 under gem with momentum
            0.9. It suits 1 to 32 workers, because pi falls with the number of workers (about 1 600 simulated runs,
            docs/rules.md). Orthogonalised steps contain their momentum, so the rule has none, and pi is at most 1. For
            Adam's family they use the whole rate (docs/default.md). For Muon they use a third, which makes them 1.7
            times as large as Muon's own. In simulated runs of Muon for all matrices of a transformer (28 k parameters,
            text, 300 steps, its best rate 0.02) one worker then had a loss of 2.133, and Muon alone 2.190 (with factor
            1: 2.322). Three workers had 1.856, and Muon alone 1.855 after 900 steps.
    """

    kind: RecipeKind
    factor: float


_A_THIRD = 1 / 3
_ADAM = _Translation(RecipeKind.RMS, _A_THIRD)
# For Adam's family on a model with an embedding and several hidden matrices (transformers, LSTMs). Of all variants that
# were measured, orthogonalising the hidden matrices helps most.
_ADAM_WITH_EMBEDDING = _Translation(RecipeKind.SPECTRAL, 1.0)
_TRANSLATIONS: Mapping[type[Optimizer], _Translation] = {
    Adam: _ADAM,
    AdamW: _ADAM,
    NAdam: _ADAM,
    RAdam: _ADAM,
    Muon: _Translation(RecipeKind.SPECTRAL, _A_THIRD),
    SGD: _Translation(RecipeKind.GRADIENT, _A_THIRD),
}
_ADAMS = (Adam, AdamW, NAdam, RAdam)
# With a single hidden matrix, between an embedding and a head, orthogonalising is harmful: two workers of the character
# model in examples/accelerate_loop.py ended at a loss of 2.03, where one process reaches 1.85, and two workers with
# RMS-scaled gradients about 1.87.
_LEAST_HIDDEN = 2
# Options of parameter groups that change a class's step in a way that has no translation.
_UNTRANSLATED = ("amsgrad", "maximize", "differentiable")
# Values of Muon's adjust_lr_fn, by which its rate depends on a matrix's shape. None means the first. A recipe contains
# the index.
_ADJUSTMENTS = ("original", "match_rms_adamw", "spectral_unclamped")
# The recipe's group for parameters that are in no group of the optimizer. No worker trains them.
_UNTRAINED = {"lr": 0.0}
# Root mean square of AdamW's steps in units of its rate, to which "match_rms_adamw" scales Muon's (arXiv 2502.16982).
_ADAM_RMS = 0.2


@dataclass(frozen=True, slots=True)
class Choice:
    """A recipe, and the reason for its kind.

    Attributes:
        recipe: the recipe that the worker offers to the run.
        reason: why the optimizer makes its own steps, such as "AdamW with amsgrad". Empty if it is translated.
    """

    recipe: Recipe
    reason: str

    def describe(self, named_rule: str | None) -> str:
        """Describe in one line what is committed. `named_rule` is the rule of a server that follows no recipe."""
        recipe = self.recipe
        if named_rule is not None:
            name = self.reason or recipe.optimizer
            return f"{name}: its own steps are committed, under {named_rule}, which the server names (docs/rules.md)"
        if recipe.kind is RecipeKind.MOVEMENT:
            return f"{self.reason}: its own steps are committed, under gem with a signed gap (docs/rules.md)"
        rule = "gem with a signed gap" if recipe.has_momentum else "gem"
        return f"{recipe.optimizer}: {recipe.in_words()}, under {rule} (docs/rules.md)"


def choose_recipe(
    optimizer: Optimizer, model: nn.Module, tensors: Sequence[ModelTensor], *, every: int | str
) -> Choice:
    """Derive the recipe of `optimizer`.

    Args:
        optimizer: the script's optimizer, which trains parameters of `model`.
        model: the script's model.
        tensors: the model's tensors, in layout order.
        every: optimizer steps between two commits. Only 1 allows a translation.
    """
    parameters = [one for one in tensors if one.spec.kind is TensorKind.PARAMETER]
    groups = optimizer.param_groups
    reason = _reason_for_movement(optimizer, model, every)
    if reason:
        kind = RecipeKind.MOVEMENT
        numbers = [{"lr": _first_rate(group)} for group in groups][:MAX_GROUPS]
    else:
        translation = _translation_of(optimizer, tensors)
        kind = translation.kind
        numbers = [_numbers_of(optimizer, group, translation) for group in groups]
    group_of = {id(one): number for number, group in enumerate(groups) for one in group["params"]}
    places = [group_of.get(id(one.tensor), len(groups)) for one in parameters]
    if len(groups) in places and not reason:
        numbers.append(dict(_UNTRAINED))
    last = len(numbers) - 1
    recipe = Recipe(kind, type(optimizer).__name__, tuple(numbers), tuple(min(place, last) for place in places))
    return Choice(recipe, reason)


def keep_first_rates(optimizer: Optimizer) -> None:
    """Store each group's first learning rate as `initial_lr`, as schedulers do, so that `state_dict()` saves it.

    A script that sets the rate by hand, and is restarted from its saved optimizer, then derives the same recipe again.
    """
    for group in optimizer.param_groups:
        rate = group.get("lr")
        if rate is not None:
            group.setdefault("initial_lr", rate.clone() if isinstance(rate, Tensor) else rate)


def rate_factor(kind: RecipeKind, factor: float, group: Mapping[str, Any]) -> float:
    """Return the rate of a commit divided by the learning rate, in a recipe with this `factor`.

    `group` is a group of the optimizer or of its recipe. SGD with momentum m moves 1 / (1 - m) times as far as without.
    """
    if kind is RecipeKind.GRADIENT:
        return of_gradients(factor, number_of(group["momentum"]), number_of(group["dampening"]))
    return factor


def decays_coupled(optimizer: Optimizer, group: Mapping[str, Any]) -> bool:
    """Whether weight_decay is added to the gradient (SGD, Adam). AdamW and Muon shrink the parameters instead."""
    return not isinstance(optimizer, Muon) and not group.get("decoupled_weight_decay", False)


def orthogonalised(optimizer: Optimizer, trained: Sequence[Tensor], hidden: Sequence[int]) -> dict[int, float]:
    """The tensors that a spectral recipe orthogonalises, with the factor of each one's rate.

    Args:
        optimizer: the script's optimizer.
        trained: all PARAMETERs, in layout order.
        hidden: the indices of the hidden matrices among them.

    Returns:
        The factors by index in `trained`. They are 1 for Adam's family; Muon's rate depends on the matrix's shape.
    """
    if not isinstance(optimizer, Muon):
        return dict.fromkeys(hidden, 1.0)
    adjust = {id(one): group["adjust_lr_fn"] for group in optimizer.param_groups for one in group["params"]}
    return {
        number: _muon_factor(adjust[id(one)] or _ADJUSTMENTS[0], *one.shape)
        for number, one in enumerate(trained)
        if id(one) in adjust
    }


def momentum_of(group: Mapping[str, Any]) -> float:
    """Return the present momentum of a translated optimizer's group, which is beta1 in Adam's family."""
    return number_of(group["betas"][0] if "betas" in group else group["momentum"])


def number_of(value: Any) -> float:
    """Convert a setting to a number. None, the learning rate of optimizers that find their own, becomes 0."""
    return 0.0 if value is None else float(value)


def _reason_for_movement(optimizer: Optimizer, model: nn.Module, every: int | str) -> str:
    name, kind = type(optimizer).__name__, type(optimizer)
    if every != 1:
        return f"{name} with every={every!r}"
    if kind not in _TRANSLATIONS:
        return name
    groups = optimizer.param_groups
    for option in _UNTRANSLATED:
        if any(group.get(option) for group in groups):
            return f"{name} with {option}"
    if any(not momentum_of(group) < 1 for group in groups):
        return f"{name} with a momentum of 1 or more"
    if kind is Muon and any(group["adjust_lr_fn"] not in (None, *_ADJUSTMENTS) for group in groups):
        return f"{name} with an unknown adjust_lr_fn"
    known = {id(one) for one in model.parameters()}
    if any(id(one) not in known for group in groups for one in group["params"]):
        return f"{name} with parameters outside the model"
    if len(groups) >= MAX_GROUPS:
        return f"{name} with {len(groups)} parameter groups"
    return ""


def _translation_of(optimizer: Optimizer, tensors: Sequence[ModelTensor]) -> _Translation:
    is_deep = len(hidden_matrices(tensors)) >= _LEAST_HIDDEN
    if type(optimizer) in _ADAMS and has_trained_embedding(tensors) and is_deep:
        return _ADAM_WITH_EMBEDDING
    return _TRANSLATIONS[type(optimizer)]


def _numbers_of(optimizer: Optimizer, group: Mapping[str, Any], translation: _Translation) -> dict[str, float]:
    """Return the numbers of a group that must be equal in all workers, with their values before the first step."""
    numbers = {"lr": _first_rate(group), "weight_decay": number_of(group["weight_decay"]), "factor": translation.factor}
    # OneCycleLR and CyclicLR change the momentum, and store its first value as max_momentum.
    momentum = number_of(group.get("max_momentum", momentum_of(group)))
    if isinstance(optimizer, SGD):
        return numbers | {"momentum": momentum, "dampening": number_of(group["dampening"])}
    if translation.kind is RecipeKind.SPECTRAL:
        numbers["beta1"] = momentum
    if isinstance(optimizer, Muon):
        adjust = _ADJUSTMENTS.index(group["adjust_lr_fn"] or _ADJUSTMENTS[0])
        return numbers | {"beta2": BETA2, "epsilon": EPSILON, "adjust_lr_fn": float(adjust)}
    return numbers | {
        "beta2": number_of(group["betas"][1]),
        "epsilon": number_of(group["eps"]),
        "decoupled_weight_decay": float(not decays_coupled(optimizer, group)),
    }


def _first_rate(group: Mapping[str, Any]) -> float:
    """Return the learning rate before the first step, or for OneCycleLR, which begins low, the highest one."""
    return number_of(group.get("max_lr", group.get("initial_lr", group.get("lr"))))


def _muon_factor(adjust: str, rows: int, columns: int) -> float:
    """Return Muon's rate for a matrix divided by the rate with which AdamW makes steps of the same size."""
    of_muon = {
        "original": math.sqrt(max(1, rows / columns)),
        "match_rms_adamw": _ADAM_RMS * math.sqrt(max(rows, columns)),
        "spectral_unclamped": math.sqrt(rows / columns),
    }[adjust]
    return of_muon / (_ADAM_RMS * math.sqrt(max(rows, columns)))
