"""From gradients to the direction of a commit: clipping, momentum, orthogonalising, scaling (docs/rules.md).

`Plan` says what is done with which elements, and `GradientTransform` does it in place, on the flat gradients. This
module does not know optimizers, schedules of learning rates or the server; optimizer_recipe.py and
translated_optimizer.py do.

Momentum comes before everything else but clipping. With b for beta1, the newest gradient g, and k gradients in the
mean m including g:

    m <- b m + (1 - b) g
    u =  (b m + (1 - b) g) / (1 - b^(k + 1))

That is Nesterov's momentum (Dozat, 2016, "Incorporating Nesterov momentum into Adam"), divided by the sum of its
weights. The sum is kept as a number, so that b may change from step to step. m itself is the mean that torch's Adam
keeps as `exp_avg` and its Muon as `momentum_buffer`.

Scaling by the root of a mean of squares is Adam's (Kingma and Ba, 2015, arXiv 1412.6980); orthogonalising is Muon's
Newton-Schulz iteration (Jordan et al., 2024) with the factor of Liu et al., 2025, arXiv 2502.16982.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from gem_worker.flat_model import FlatModel
from gem_worker.hidden_matrices import has_trained_embedding, hidden_matrices

# The numbers of direction auto. docs/default.md has the measurements behind them.
BETA1 = 0.9
BETA2 = 0.99
EPSILON = 1e-8
# Largest magnitude of a scaled element. Without a limit the first gradient of a rare embedding row reaches 10 to 32
# times the root of its mean square, because the mean has forgotten the last one (measured on text, docs/rules.md).
LIMIT = 5.0
_QUINTIC = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_ADAM_RMS = 0.2
# On a CPU vectors are processed in pieces that stay in the cache from one pass to the next: 2**17 float32 values are
# 512 KiB.
_PIECE = 2**17


class Scaling(NamedTuple):
    """Scaling as in Adam: v <- beta2 v + (1 - beta2) g^2, and the direction is g / (root(v_hat) + epsilon)."""

    beta2: float = BETA2
    epsilon: float = EPSILON


class GroupNow(NamedTuple):
    """What one step does with the elements of a group, besides scaling.

    Attributes:
        multiplier: factor of the direction.
        decay: before everything else, this share of the parameters is added to the gradient, as Adam and SGD do with
            weight_decay.
        beta1: decay rate of the momentum, at least 0 and below 1, if the plan has momentum. With 0 the gradient is not
            changed.
    """

    multiplier: float = 1.0
    decay: float = 0.0
    beta1: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How a gradient becomes a direction.

    Attributes:
        matrices: indices in `FlatModel.trained` of the tensors that are orthogonalised.
        scales: "nothing", or "all". Matrices are scaled after they were orthogonalised.
        limit: largest magnitude of a scaled element.
        groups: how each parameter group is scaled. There is one group if nothing is known of the optimizer's groups.
        group_of: the group of each tensor of `FlatModel.trained`. If it is empty, all are in the first group.
        factors: the last factor of a tensor, by its index in `FlatModel.trained`.
        has_momentum: whether the momentum of the gradients replaces them. Only with `scales` other than "nothing".
    """

    matrices: tuple[int, ...] = ()
    scales: str = "nothing"
    limit: float = math.inf
    groups: tuple[Scaling, ...] = (Scaling(),)
    group_of: tuple[int, ...] = ()
    factors: Mapping[int, float] = field(default_factory=dict)
    has_momentum: bool = False

    @classmethod
    def of_direction(cls, flat: FlatModel, direction: str) -> "Plan":
        """Return the plan of a direction by its name in `RunSettings.direction`."""
        if direction == "gradient":
            return cls()
        if direction == "rms":
            return cls(scales="all")
        matrices = hidden_matrices(flat.tensors) if has_trained_embedding(flat.tensors) else ()
        return cls(matrices, scales="all", limit=LIMIT, has_momentum=True)


@dataclass(slots=True)
class TransformState:
    """One worker's v (mean of squares) and m (mean of gradients).

    Attributes:
        squares: v in pieces.
        weights: for each scaling, the sum of the weights of all squares in v, which is 1 - beta2^n after n steps.
        means: m in pieces. Empty without momentum.
        mean_weights: for each group of the plan, the sum of the weights of all gradients in m, which is 1 - beta1^n.
    """

    squares: tuple[Tensor, ...]
    weights: Tensor
    means: tuple[Tensor, ...]
    mean_weights: Tensor


class _Span(NamedTuple):
    """Consecutive elements of one of `FlatModel.groups` that belong to one group or scaling, whose index is `of`."""

    flat_group: int
    start: int
    stop: int
    of: int


class GradientTransform:
    """Clips gradients and turns them into directions, in place. Workers may share it, each with its own state."""

    def __init__(self, flat: FlatModel, plan: Plan, clip_norm: float = 0.0) -> None:
        self._flat = flat
        self._plan = plan
        self._clip_norm = clip_norm
        self._scalings = tuple(dict.fromkeys(plan.groups))
        groups = plan.group_of or (0,) * len(flat.trained)
        by_group = [self._scalings.index(scaling) for scaling in plan.groups]
        scaled = plan.scales == "all"
        self._pieces = _pieces(flat, [by_group[group] if scaled else None for group in groups])
        self._mean_pieces = _pieces(flat, groups) if plan.has_momentum else ()
        self._spans = tuple(_spans(flat, groups))
        self._usual = (GroupNow(beta1=BETA1),) * len(plan.groups)
        beta2 = [one.beta2 for one in self._scalings]
        self._beta2 = torch.tensor(beta2, dtype=torch.float32, device=flat.device)
        self._rest = torch.tensor([1 - one for one in beta2], dtype=torch.float32, device=flat.device)

    def new_state(self) -> TransformState:
        """Create the state of a new worker, which is 0."""
        device = self._flat.device

        def zeros(pieces: tuple[_Span, ...]) -> tuple[Tensor, ...]:
            return tuple(torch.zeros(one.stop - one.start, dtype=torch.float32, device=device) for one in pieces)

        mean_weights = torch.zeros(len(self._plan.groups), dtype=torch.float32, device=device)
        return TransformState(
            zeros(self._pieces), torch.zeros_like(self._beta2), zeros(self._mean_pieces), mean_weights
        )

    def state_over(
        self, squares: Sequence[Tensor], steps: Sequence[int], means: Sequence[Tensor], betas: Sequence[float]
    ) -> TransformState:
        """Create a state whose v and m are views of these vectors.

        Args:
            squares: v, a float32 vector for each of `FlatModel.groups`.
            steps: the number of steps that v and m contain, for each group of the plan. Groups that are scaled in the
                same way share their v, for which the largest of their numbers counts.
            means: m, in the same form. Not used without momentum.
            betas: the beta1 that m was made with, for each group of the plan.
        """
        weights = [
            max(1 - one.beta2**count for group, count in zip(self._plan.groups, steps, strict=True) if group == one)
            for one in self._scalings
        ]
        mean_weights = [1 - beta1**count for beta1, count in zip(betas, steps, strict=True)]
        return TransformState(
            tuple(squares[one.flat_group][one.start : one.stop] for one in self._pieces),
            torch.tensor(weights, dtype=torch.float32, device=self._flat.device),
            tuple(means[one.flat_group][one.start : one.stop] for one in self._mean_pieces),
            torch.tensor(mean_weights, dtype=torch.float32, device=self._flat.device),
        )

    @torch.no_grad()
    def clip(self) -> None:
        """Clip unscaled gradients to the largest norm. If their norm is not finite, all become NaN."""
        if self._clip_norm:
            norm = _norm(self._flat)
            factor = torch.where(norm.isfinite(), (self._clip_norm / norm).clamp(max=1.0), math.nan)
            for group in self._flat.groups:
                group.gradients.mul_(factor)

    @torch.no_grad()
    def direct(self, state: TransformState, now: Sequence[GroupNow] = ()) -> None:
        """Replace the gradients by directions. If their norm is not finite, all become NaN and `state` does not change.

        Gradients that are all 0 stay 0, even if there is momentum: perhaps no backward pass has reached the model, and
        the code that warns of this (gradient_watch.py) only sees the delta.

        `now` has an entry for each group of the plan. If it is empty, the settings are those of direction `auto`.
        """
        now = now or self._usual
        if self._plan.scales == "nothing":  # no check: values that are not finite are found when they are sent
            self._decay(now)
            self._multiply(now)
            return
        norm = _norm(self._flat)
        is_finite: Tensor | None = norm.isfinite()
        if self._flat.device.type == "cpu":
            if not is_finite:
                for group in self._flat.groups:
                    group.gradients.fill_(math.nan)
                return
            if self._mean_pieces and not norm:
                return
            is_finite = None
        factor = None if is_finite is None else torch.where(is_finite, 1.0, math.nan)
        self._decay(now)
        if self._mean_pieces:
            self._look_ahead(state, now, is_finite)
        for number in self._plan.matrices:
            gradient = self._flat.trained[number].gradient
            direction = spectral_direction(gradient)
            gradient.copy_(direction if factor is None else direction.mul_(factor))
        self._scale(state, is_finite, factor)
        self._multiply(now)
        if self._mean_pieces and is_finite is not None:
            for group in self._flat.groups:
                group.gradients.mul_(norm != 0)

    def _look_ahead(self, state: TransformState, now: Sequence[GroupNow], is_finite: Tensor | None) -> None:
        """Replace the gradients by their momentum. Gradients that are not finite remain not finite."""
        shares = torch.tensor([(one.beta1, 1 - one.beta1) for one in now], device=self._flat.device)
        beta1, rest = shares.T
        weights = beta1 * state.mean_weights + rest
        state.mean_weights = weights if is_finite is None else torch.where(is_finite, weights, state.mean_weights)
        divisors = beta1 * weights + rest
        for (flat_group, start, stop, number), mean in zip(self._mean_pieces, state.means, strict=True):
            values = self._flat.groups[flat_group].gradients[start:stop]
            _take_momentum(values, mean, now[number].beta1, divisors[number], is_finite)

    def _scale(self, state: TransformState, is_finite: Tensor | None, factor: Tensor | None) -> None:
        if not self._pieces:
            return
        weights = self._beta2 * state.weights + self._rest
        state.weights = weights if is_finite is None else torch.where(is_finite, weights, state.weights)
        divisors = state.weights if factor is None else state.weights * factor
        for (flat_group, start, stop, number), square in zip(self._pieces, state.squares, strict=True):
            values = self._flat.groups[flat_group].gradients[start:stop]
            _normalise(values, square, divisors[number], self._scalings[number], is_finite, self._plan.limit)

    def _decay(self, now: Sequence[GroupNow]) -> None:
        for flat_group, start, stop, number in self._spans:
            if decay := now[number].decay:
                group = self._flat.groups[flat_group]
                group.gradients[start:stop].add_(group.parameters[start:stop], alpha=decay)

    def _multiply(self, now: Sequence[GroupNow]) -> None:
        for flat_group, start, stop, number in self._spans:
            if (multiplier := now[number].multiplier) != 1:
                self._flat.groups[flat_group].gradients[start:stop].mul_(multiplier)
        if self._plan.factors:
            gradients = [self._flat.trained[number].gradient for number in self._plan.factors]
            torch._foreach_mul_(gradients, list(self._plan.factors.values()))


def spectral_direction(gradient: Tensor) -> Tensor:
    """Return a matrix's orthogonalised gradient, scaled so that the root mean square of its elements is like Adam's."""
    matrix = gradient.flatten(1)
    return orthogonalise(matrix).mul_(_ADAM_RMS * math.sqrt(max(matrix.shape))).view(gradient.shape)


def orthogonalise(matrix: Tensor) -> Tensor:
    """Move the singular values of a matrix close to 1 by Muon's Newton-Schulz iteration.

    They end between 0.68 and 1.14. Singular values below about 1e-3 of the norm end lower, and zeros remain zeros.

    Returns bfloat16 on CUDA, else float32.
    """
    # Without this division, squares may overflow or underflow.
    result = matrix.float()
    result = result / result.abs().amax().clamp(min=torch.finfo(torch.float32).tiny)
    result = result / torch.linalg.vector_norm(result).clamp(min=1.0)
    if matrix.device.type == "cuda":
        result = result.bfloat16()
    is_tall = matrix.shape[0] > matrix.shape[1]
    if is_tall:
        result = result.T.contiguous()
    a, b, c = _QUINTIC
    for _ in range(_ITERATIONS):
        gram = result @ result.T
        polynomial = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        result = torch.addmm(result, polynomial, result, beta=a)
    return result.T.contiguous() if is_tall else result


def _take_momentum(values: Tensor, mean: Tensor, beta1: float, weight: Tensor, is_finite: Tensor | None) -> None:
    """Update `mean`, and replace `values` by Nesterov's momentum divided by the sum of its weights.

    `is_finite` is a tensor that says whether the gradient is finite, or None if it is known to be.
    """
    gradient = values.float()
    if is_finite is None:
        newest = mean.lerp_(gradient, 1 - beta1)
    else:
        newest = torch.lerp(mean, gradient, 1 - beta1)
        torch.where(is_finite, newest, mean, out=mean)
    gradient.lerp_(newest, beta1).div_(weight)
    if gradient is not values:
        values.copy_(gradient)


def _normalise(
    values: Tensor, square: Tensor, weight: Tensor, scaling: Scaling, is_finite: Tensor | None, limit: float
) -> None:
    """Update `square`, and divide `values` by its root.

    `is_finite` is a tensor that says whether the gradient is finite, or None if it is known to be. `weight` is NaN if
    the gradient is not finite.
    """
    gradient = values.float()
    if is_finite is None:
        square.mul_(scaling.beta2).addcmul_(gradient, gradient, value=1 - scaling.beta2)
        root = torch.div(square, weight)
    else:
        root = (scaling.beta2 * square).addcmul_(gradient, gradient, value=1 - scaling.beta2)
        torch.where(is_finite, root, square, out=square)
        torch.div(square, weight, out=root)
    root.sqrt_().add_(scaling.epsilon)
    if values.dtype is torch.float32:
        result = torch.div(gradient, root, out=values)
    else:
        result = torch.div(gradient, root, out=root)
    if limit < math.inf:
        result.clamp_(-limit, limit)
    if result is not values:
        values.copy_(result)


def _norm(flat: FlatModel) -> Tensor:
    gradients = [group.gradients for group in flat.groups]
    norms = [torch.linalg.vector_norm(one if one.dtype is torch.float64 else one.float()).float() for one in gradients]
    total: Tensor = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    return total


def _spans(flat: FlatModel, numbers: Sequence[int | None]) -> Iterator[_Span]:
    """Yield the longest runs of tensors of `flat.trained` with the same number. Tensors with None are in no run."""
    for place, group in enumerate(flat.groups):
        members = [
            (one.start - group.start, one.start - group.start + one.tensor.numel(), number)
            for one, number in zip(flat.trained, numbers, strict=True)
            if one.tensor.numel() and group.start <= one.start < group.stop
        ]
        for number, run in itertools.groupby(members, key=lambda member: member[2]):
            if number is not None:
                (start, stop, _), *others = run
                yield _Span(place, start, others[-1][1] if others else stop, number)


def _pieces(flat: FlatModel, numbers: Sequence[int | None]) -> tuple[_Span, ...]:
    """Return the spans of `numbers`. On a CPU they are cut into pieces that fit into its cache."""
    most = _PIECE if flat.device.type == "cpu" else math.inf
    return tuple(piece for span in _spans(flat, numbers) for piece in _cut(span, most))


def _cut(span: _Span, most: float) -> Iterator[_Span]:
    """Divide a span into pieces of at most `most` elements."""
    start = span.start
    while start < span.stop:
        stop = int(min(start + most, span.stop))
        yield span._replace(start=start, stop=stop)
        start = stop
