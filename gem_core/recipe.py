"""The recipe of a run: how the optimizer of its workers' scripts is translated (run.proto, docs/rules.md).

A worker derives the recipe from its optimizer. The first worker's recipe becomes the run's, and determines the settings
of rule `gem` on the server. Recipes are immutable values. This module validates and compares them, and depends neither
on optimizers nor on protobuf.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from gem_core.errors import RecipeError
from gem_core.layout import Layout
from gem_core.rule_settings import WHOLE_STEPS
from gem_core.visible_text import describe_invisible, find_invisible

__all__ = ["MAX_GROUPS", "MAX_GROUP_SETTINGS", "Recipe", "RecipeKind", "check_decays"]

# Limits the size of a Join and of the kernel's vector of factors. A script with a group for each layer has fewer.
MAX_GROUPS = 256
MAX_GROUP_SETTINGS = 16
# Names such as "weight_decay".
MAX_SETTING_NAME_BYTES = 64
MAX_OPTIMIZER_BYTES = 256


class RecipeKind(StrEnum):
    """What the commits of a run are made of."""

    GRADIENT = "gradient"
    RMS = "rms"
    SPECTRAL = "spectral"
    MOVEMENT = "movement"


_KINDS_IN_WORDS: Mapping[RecipeKind, str] = {
    RecipeKind.GRADIENT: "gradients",
    RecipeKind.RMS: "RMS-scaled gradients",
    RecipeKind.SPECTRAL: "orthogonalised, RMS-scaled momentum",
}
_RATES_IN_WORDS = {1.0: "its rate", 1 / 3: "a third of its rate"}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a script's optimizer is translated.

    Attributes:
        kind: what a commit is made of.
        optimizer: the optimizer's class, for people, such as "AdamW".
        groups: the numbers of each parameter group by name (lr, beta2, ...), as they were before the first step.
        group_of_parameter: the group of each PARAMETER, in the layout's order; indices of `groups`.

    Raises:
        RecipeError: an unknown kind, a name that is empty, too long or not visible, a number that is not finite, too
            many or no groups, or a parameter in a group that does not exist.
    """

    kind: RecipeKind
    optimizer: str
    groups: tuple[Mapping[str, float], ...]
    group_of_parameter: tuple[int, ...]

    def __post_init__(self) -> None:
        known = [kind.value for kind in RecipeKind]
        if self.kind not in known:
            raise RecipeError(f"the recipe's kind is {self.kind[:80]!r}; known are {', '.join(known)}: update gemps")
        object.__setattr__(self, "kind", RecipeKind(self.kind))
        _check_name("the optimizer's name", self.optimizer, MAX_OPTIMIZER_BYTES)
        if not 1 <= len(self.groups) <= MAX_GROUPS:
            raise RecipeError(
                f"the optimizer has {len(self.groups)} parameter groups; a recipe has 1 to {MAX_GROUPS}: join groups "
                "with equal settings"
            )
        object.__setattr__(self, "groups", tuple(map(_checked_group, range(len(self.groups)), self.groups)))
        object.__setattr__(self, "group_of_parameter", tuple(self.group_of_parameter))
        for parameter, group in enumerate(self.group_of_parameter):
            if not 0 <= group < len(self.groups):
                raise RecipeError(
                    f"parameter {parameter} is in group {group}: name one of the recipe's {len(self.groups)}"
                )

    def check_parameters(self, count: int) -> None:
        """Raise RecipeError unless the recipe has a group for each of `count` PARAMETERs."""
        if len(self.group_of_parameter) != count:
            raise RecipeError(
                f"the recipe has groups for {len(self.group_of_parameter)} parameters, and the layout has {count} "
                "PARAMETER tensors: name the group of each of them"
            )

    def groups_of(self, layout: Layout) -> tuple[int, ...]:
        """Return the group of each PARAMETER of a layout, which may be a shard of the model."""
        groups = dict(zip((spec.name for spec in layout.whole.parameters), self.group_of_parameter, strict=True))
        return tuple(groups[spec.name] for spec in layout.parameters)

    @property
    def has_momentum(self) -> bool:
        """Whether workers take the momentum of their gradients, by each group's beta1, before they orthogonalise."""
        return self.kind is RecipeKind.SPECTRAL

    def rule_settings(self) -> Mapping[str, float]:
        """The settings of rule `gem` in a run with this recipe, as far as they are not the defaults."""
        is_whole = self.kind is RecipeKind.MOVEMENT or self.has_momentum
        return WHOLE_STEPS if is_whole else MappingProxyType({})

    def in_words(self) -> str:
        """Describe what a commit is made of, for example "RMS-scaled gradients at a third of its rate"."""
        if self.kind is RecipeKind.MOVEMENT:
            return "its own steps"
        first = self.groups[0]
        factor, momentum = first.get("factor", 1.0), first.get("momentum", 0.0)
        if self.kind is RecipeKind.GRADIENT and momentum != 1:
            factor = of_gradients(factor, momentum, first.get("dampening", 0.0))
        return f"{_KINDS_IN_WORDS[self.kind]} at {_RATES_IN_WORDS.get(factor, f'{factor:.3g} times its rate')}"

    def difference(self, other: Recipe) -> str:
        """Describe the first difference between a worker's recipe, `other`, and this one, which is the run's.

        For example "group 0: lr is 0.002, the run has 0.001". Empty if they are equal.
        """
        if other.optimizer != self.optimizer:
            return f"the optimizer is {other.optimizer}, the run has {self.optimizer}"
        if other.kind != self.kind:
            return (
                f"a commit is made of {other.in_words()}, in the run of {self.in_words()} (every=, an option of the "
                "optimizer, or the model differs)"
            )
        if len(other.groups) != len(self.groups):
            return f"the optimizer has {len(other.groups)} parameter groups, the run has {len(self.groups)}"
        for number, (theirs, ours) in enumerate(zip(other.groups, self.groups, strict=True)):
            if found := _difference_of_groups(theirs, ours):
                return f"group {number}: {found}"
        return _difference_of_parameters(other.group_of_parameter, self.group_of_parameter)


def of_gradients(factor: float, momentum: float, dampening: float) -> float:
    """Return the rate of a commit divided by SGD's learning rate.

    SGD with momentum m moves 1 / (1 - m) times as far as SGD without.
    """
    return factor * (1 - dampening) / (1 - momentum)


def check_decays(decays: tuple[float, ...], groups: int) -> None:
    """Check the shares that a commit takes from the parameters of each group.

    Raises RecipeError unless there are none, or one for each group, each at least 0 and below 1.
    """
    if decays and len(decays) != groups:
        raise RecipeError(
            f"the commit has {len(decays)} decays, and the run's recipe {groups} groups: send one for each"
        )
    for group, decay in enumerate(decays):
        if not 0 <= decay < 1:
            raise RecipeError(
                f"the decay of group {group} is {decay:g}; it must be at least 0 and below 1: lower the learning rate "
                "or the weight decay"
            )


def _checked_group(number: int, group: Mapping[str, float]) -> Mapping[str, float]:
    if len(group) > MAX_GROUP_SETTINGS:
        raise RecipeError(f"group {number} has {len(group)} settings: send at most {MAX_GROUP_SETTINGS}")
    for name, value in group.items():
        _check_name(f"a setting's name in group {number}", name, MAX_SETTING_NAME_BYTES)
        if not math.isfinite(value):
            raise RecipeError(f"group {number}: {name} is {value}; it must be a finite number")
    return MappingProxyType({name: float(value) for name, value in sorted(group.items())})


def _check_name(what: str, name: str, most: int) -> None:
    size = len(name.encode(errors="surrogatepass"))
    if not 1 <= size <= most:
        raise RecipeError(f"{what} has {size} bytes; choose 1 to {most}")
    at = find_invisible(name)
    if at is not None:
        raise RecipeError(f"{what} has {describe_invisible(name, at)}: remove it")


def _difference_of_groups(theirs: Mapping[str, float], ours: Mapping[str, float]) -> str:
    for name in sorted({*theirs, *ours}):
        if name not in ours:
            return f"{name} is {theirs[name]!r}, the run has none"
        if name not in theirs:
            return f"{name} is missing, the run has {ours[name]!r}"
        if theirs[name] != ours[name]:
            return f"{name} is {theirs[name]!r}, the run has {ours[name]!r}"
    return ""


def _difference_of_parameters(theirs: tuple[int, ...], ours: tuple[int, ...]) -> str:
    if len(theirs) != len(ours):
        return f"the recipe has groups for {len(theirs)} parameters, the run has {len(ours)}"
    for parameter, (their, our) in enumerate(zip(theirs, ours, strict=True)):
        if their != our:
            return f"parameter {parameter} is in group {their}, the run has it in group {our}"
    return ""
