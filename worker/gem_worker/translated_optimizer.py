"""A script's optimizer in a run that follows its recipe: its step makes the delta, and moves no parameter.

Until `close`, `optimizer.step` is replaced on the instance, so that whoever calls it gets the translation: the worker
itself (`run`), a GradScaler, or a Trainer's loop, which calls `ParameterServer.exchange` afterwards. The optimizer's
hooks run as they do around its own step, and schedulers see that it was called.

The mean of squares is stored where the optimizer's own step stores it (`exp_avg_sq` and `step` of its state). So the
optimizer's `state_dict` saves it, and training continues from a saved state, even from one of the optimizer's own
steps. The same holds for the momentum if the recipe has one (`exp_avg`, in Muon `momentum_buffer`). With other recipes
the server's rule has the momentum, and there is none to save.

A translation is idle or pending. It is pending when a delta is in the flat gradients, or in a copy of them while a
script's loop continues. Not thread-safe.
"""

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Muon, NAdam, Optimizer

from gem_core.recipe import Recipe, RecipeKind
from gem_worker.errors import UnsupportedOptimizerError
from gem_worker.flat_model import FlatModel, TrainedTensor, own_view
from gem_worker.gradient_transform import LIMIT, GradientTransform, GroupNow, Plan, Scaling, TransformState
from gem_worker.hidden_matrices import hidden_matrices
from gem_worker.loss_scaler import as_scaler
from gem_worker.optimizer_recipe import decays_coupled, momentum_of, number_of, orthogonalised, rate_factor
from gem_worker.unreached_tensors import UnreachedTensors


class Made(NamedTuple):
    """The numbers that belong to a delta in the flat gradients.

    Attributes:
        scale: the delta is -scale times the flat gradients.
        rate: the learning rate of the first group.
        decays: for each group of the recipe, the share that the commit takes from its parameters. Empty if no group
            decays.
    """

    scale: float
    rate: float
    decays: tuple[float, ...]


# Attributes of the optimizer that differ until `close`.
_REPLACED = ("step", "_step_supports_amp_scaling")


class TranslatedOptimizer:
    """Turns the gradients of `flat` into deltas by `recipe`, which is both the run's and this optimizer's.

    Args:
        optimizer: the script's optimizer.
        recipe: any recipe but one of kind movement.
        flat: the model's gradients and parameters.
        begin: called at each step, before the gradients are collected. If it returns False, the run is over, and the
            step does nothing.

    Attributes:
        is_pending: whether a delta waits for its exchange.
    """

    def __init__(self, optimizer: Optimizer, recipe: Recipe, flat: FlatModel, begin: Callable[[], bool]) -> None:
        self.is_pending = False
        self._optimizer = optimizer
        self._recipe = recipe
        self._flat = flat
        self._begin = begin
        self._is_own_step = self._is_unscaled = self._is_run = False
        self._kept: list[Tensor] = []
        self._made = Made(1.0, 0.0, ())
        self._steps: list[Tensor] = []
        self._mean_name = "momentum_buffer" if isinstance(optimizer, Muon) else "exp_avg"
        self._transform = GradientTransform(flat, _plan(optimizer, recipe, flat))
        self._state = self._transform.new_state() if recipe.kind is RecipeKind.GRADIENT else self._attach()
        self._unreached = UnreachedTensors(flat, recipe.group_of_parameter, optimizer.state)
        self._hooks = [
            optimizer.register_load_state_dict_post_hook(self._loaded),
            optimizer.register_step_pre_hook(self._refuse_untranslated),
        ]
        self._replaced = {name: vars(optimizer)[name] for name in _REPLACED if name in vars(optimizer)}
        self._replace()

    @property
    def has_rest(self) -> bool:
        """Whether the end of the block has something to commit."""
        return self.is_pending

    @property
    def rate(self) -> float:
        """The present learning rate of the first group."""
        return number_of(self._groups[0]["lr"])

    @property
    def made(self) -> Made:
        """The numbers of the pending delta. A script's schedule may have changed the optimizer's rates since."""
        return self._made

    def run(self, scaler: object) -> None:
        """Make the delta of a step. If `scaler` finds gradients that are not finite, the delta is all NaN."""
        self._is_run = True
        try:
            if scaler is None:
                self._optimizer.step()
            else:
                as_scaler(scaler).step(self._optimizer)
                as_scaler(scaler).update()
        finally:
            self._is_run = self._is_unscaled = False
        if not self.is_pending:  # the scaler skipped the step
            self._flat.collect_gradients()
            for group in self._flat.groups:
                group.gradients.fill_(torch.nan)
            self.is_pending = True

    def unscale(self, scaler: object) -> None:
        """Unscale the gradients, once for each step."""
        if scaler is not None and not self._is_unscaled:
            as_scaler(scaler).unscale_(self._optimizer)
            self._is_unscaled = True

    def take(self) -> bool:
        """Put the pending delta into the flat gradients. Returns False if there is none."""
        if self._kept:
            self._flat.collect_gradients()
            for group, kept in zip(self._flat.groups, self._kept, strict=True):
                group.gradients.copy_(kept)
            self._kept = []
        return self.is_pending

    def sent(self, *, is_finite: bool) -> None:
        """Finish the step after its delta was committed or skipped. `is_finite`: whether its gradient was finite."""
        self.is_pending = False
        if is_finite:
            for steps in self._steps:
                steps.add_(1)
            if self._recipe.has_momentum and isinstance(self._optimizer, NAdam):
                self._follow_products()
        self._flat.zero_gradients()

    def close(self) -> None:
        """Restore the optimizer's own `step`, and convert its state to what that step needs to continue."""
        for hook in self._hooks:
            hook.remove()
        for name in _REPLACED:
            vars(self._optimizer).pop(name, None)
        vars(self._optimizer).update(self._replaced)
        for one in self._flat.trained:
            state = self._optimizer.state.get(one.tensor, {})
            for name in ("exp_avg_sq", self._mean_name):
                if name in state:
                    state[name] = state[name].to(one.tensor.dtype)

    @property
    def _groups(self) -> list[dict[str, Any]]:
        return self._optimizer.param_groups

    def _replace(self) -> None:
        """Replace `step` by the translation, before which a GradScaler unscales, also with a fused optimizer."""

        def make(optimizer: Optimizer, closure: Callable[[], object] | None = None) -> object:
            return self._make(closure)

        hooked = Optimizer.profile_hook_step(make)

        def step(optimizer: Optimizer, *arguments: Any, **settings: Any) -> object:
            self._is_own_step = True
            try:
                return hooked(optimizer, *arguments, **settings)
            finally:
                self._is_own_step = False

        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # schedulers: `step` is known, do not wrap it
        self._optimizer.step = types.MethodType(step, self._optimizer)  # type: ignore[method-assign]
        self._optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]

    def _refuse_untranslated(self, *_: object) -> None:
        if not self._is_own_step:
            name = type(self._optimizer).__name__
            raise UnsupportedOptimizerError(
                f"{name}'s own step was called past gemps, which translates it: a wrapper (such as Accelerate's, with "
                "float16) has kept it since before the worker joined. Join before the optimizer is wrapped, use "
                "bfloat16, or have the server name its rule (--rule downpour), so that the optimizer steps itself"
            )

    @torch.no_grad()
    def _make(self, closure: Callable[[], object] | None) -> object:
        """Make a step: leave the delta in the flat gradients, divided by `-made.scale`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._optimizer._opt_called = True  # type: ignore[attr-defined]  # for schedulers, whose first step looks
        if self.is_pending:
            raise UnsupportedOptimizerError(
                f"{type(self._optimizer).__name__}.step() was called twice without an exchange: call ps.step(), which "
                "runs the optimizer, or ps.exchange() after each optimizer.step(); to exchange every H-th step, pass "
                "every=H to ParameterServer"
            )
        if not self._begin():
            return loss
        self._flat.collect_gradients()
        self._direct()
        self.is_pending = True
        if not self._is_run:  # the loop may zero the gradients before it exchanges
            self._kept = [group.gradients.clone() for group in self._flat.groups]
        return loss

    def _direct(self) -> None:
        groups = self._groups
        rates = [self._rate_of(number, group) for number, group in enumerate(groups)]
        shares = [number_of(group["weight_decay"]) for group in groups]
        coupled = [decays_coupled(self._optimizer, group) for group in groups]
        scale = max(map(abs, rates)) or 1.0  # the quotients rates / scale, at most 1, do not underflow in float32
        now = [
            GroupNow(rate / scale, share if is_coupled else 0.0, momentum_of(group))
            for rate, share, is_coupled, group in zip(rates, shares, coupled, groups, strict=True)
        ]
        self._unreached.update()
        decays = [
            0.0 if is_coupled or not self._unreached.has_reached(number) else number_of(group["lr"]) * share
            for number, (group, share, is_coupled) in enumerate(zip(groups, shares, coupled, strict=True))
        ]
        self._unreached.warn(decays)
        untrained = len(self._recipe.groups) - len(groups)
        self._transform.direct(self._state, (*now, *[GroupNow(0.0)] * untrained))
        self._unreached.clear()
        self._made = Made(scale, self.rate, (*decays, *[0.0] * untrained) if any(decays) else ())

    def _rate_of(self, number: int, group: Mapping[str, Any]) -> float:
        try:
            factor = self._recipe.groups[number]["factor"]
        except (IndexError, KeyError):
            raise UnsupportedOptimizerError(
                f"parameter group {number} was added after the worker joined: add all groups before "
                "ParameterServer(...), so that all workers have the same"
            ) from None
        if not momentum_of(group) < 1:
            raise UnsupportedOptimizerError(
                f"parameter group {number} has momentum {momentum_of(group):g} now: keep it below 1"
            )
        return number_of(group["lr"]) * rate_factor(self._recipe.kind, factor, group)

    def _loaded(self, _: Optimizer) -> None:
        if self._recipe.kind is not RecipeKind.GRADIENT:
            self._state = self._attach()
            self._unreached = UnreachedTensors(self._flat, self._recipe.group_of_parameter, self._optimizer.state)

    @torch.no_grad()
    def _attach(self) -> TransformState:
        """Replace the optimizer's means by views of one vector for each flat group, and keep their values."""
        flat, groups = self._flat, self._groups
        squares, means = (
            [torch.zeros_like(one.gradients, dtype=torch.float32) for one in flat.groups] if is_kept else []
            for is_kept in (True, self._recipe.has_momentum)
        )
        group_of = {id(one): number for number, group in enumerate(groups) for one in group["params"]}
        trained = [one for one in flat.trained if id(one.tensor) in group_of]
        devices = [_device_of_step(groups[group_of[id(one.tensor)]], flat.device) for one in trained]
        by_device = {device: torch.zeros(len(trained), device=device) for device in set(devices)}
        counts = [0] * len(self._recipe.groups)
        for number, (one, device) in enumerate(zip(trained, devices, strict=True)):
            state = self._optimizer.state[one.tensor]
            square = _part_of(squares, flat, one, state.get("exp_avg_sq"))
            mean = _part_of(means, flat, one, state.get(self._mean_name)) if means else torch.zeros_like(one.tensor)
            steps = int(number_of(state.get("step")))
            counts[group_of[id(one.tensor)]] = max(counts[group_of[id(one.tensor)]], steps)
            by_device[device][number] = steps
            state |= {"step": by_device[device][number], "exp_avg_sq": square, self._mean_name: mean}
            if isinstance(self._optimizer, NAdam) and not (means and "mu_product" in state):
                state["mu_product"] = torch.ones((), device=device)
        self._steps = list(by_device.values())
        betas = [momentum_of(group) for group in groups] + [0.0] * (len(counts) - len(groups))
        return self._transform.state_over(squares, counts, means, betas)

    @torch.no_grad()
    def _follow_products(self) -> None:
        """Multiply NAdam's products of momenta by this step's momentum, as NAdam's own step does."""
        for group in self._groups:
            for state in (self._optimizer.state[one] for one in group["params"] if one in self._optimizer.state):
                share = 0.5 * 0.96 ** (state["step"] * group["momentum_decay"])
                state["mu_product"].mul_(momentum_of(group) * (1 - share))


def _plan(optimizer: Optimizer, recipe: Recipe, flat: FlatModel) -> Plan:
    if recipe.kind is RecipeKind.GRADIENT:
        return Plan(groups=(Scaling(),) * len(recipe.groups), group_of=recipe.group_of_parameter)
    scalings = [
        Scaling(group["beta2"], group["epsilon"]) for group in recipe.groups if "beta2" in group
    ]  # without the last group if no worker trains its parameters
    scalings += scalings[:1] * (len(recipe.groups) - len(scalings))
    factors = {}
    if recipe.kind is RecipeKind.SPECTRAL:
        tensors = [one.tensor for one in flat.trained]
        group_of = recipe.group_of_parameter
        hidden = [number for number in hidden_matrices(flat.tensors) if "factor" in recipe.groups[group_of[number]]]
        factors = orthogonalised(optimizer, tensors, hidden)
    return Plan(
        matrices=tuple(factors),
        scales="all",
        limit=LIMIT,
        groups=tuple(scalings),
        group_of=recipe.group_of_parameter,
        factors={number: factor for number, factor in factors.items() if factor != 1},
        has_momentum=recipe.has_momentum,
    )


def _part_of(vectors: Sequence[Tensor], flat: FlatModel, one: TrainedTensor, values: Tensor | None) -> Tensor:
    """Return a view of the tensor's elements in `vectors`, one for each flat group, and copy `values` into it."""
    place = next(place for place, group in enumerate(flat.groups) if one.start < group.stop)
    part = own_view(vectors[place], one.start - flat.groups[place].start, one.values)
    if values is not None:
        part.copy_(values)
    return part


def _device_of_step(group: Mapping[str, Any], device: torch.device) -> torch.device:
    """Return the device on which the optimizer's own step expects the tensor `step` of its state."""
    return device if group.get("capturable") or group.get("fused") else torch.device("cpu")
