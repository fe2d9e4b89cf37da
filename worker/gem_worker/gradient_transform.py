"""Clipping of gradients, and the run's direction of commits (docs/rules.md).

Adam without momentum (Kingma and Ba, 2015, arXiv 1412.6980); Muon's Newton-Schulz iteration (Jordan et al., 2024) with
the factor of Liu et al., 2025, arXiv 2502.16982.
"""

import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gem_worker.errors import UnsupportedModelError
from gem_worker.flat_model import FlatModel

BETA2 = 0.99
EPSILON = 1e-8
_QUINTIC = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_ADAM_RMS = 0.2


@dataclass(slots=True)
class TransformState:
    """One worker's v in spans, and the weight of all squares in it."""

    squares: tuple[Tensor, ...]
    weight: Tensor


class _Span(NamedTuple):
    group: int
    start: int
    stop: int


class GradientTransform:
    """Raises UnsupportedModelError if `spectral` finds no matrix."""

    def __init__(self, flat: FlatModel, direction: str, clip_norm: float) -> None:
        self._flat = flat
        self._clip_norm = clip_norm
        self._has_direction = direction != "gradient"
        self._matrices = matrices_of(flat) if direction == "spectral" else ()
        self._spans = () if direction == "gradient" else _spans(flat, self._matrices)
        if direction == "spectral" and not self._matrices:
            raise UnsupportedModelError(
                f"{type(flat.model).__name__}: has no matrix outside embeddings and output head for direction "
                "spectral: choose --direction rms for the run"
            )

    def new_state(self) -> TransformState:
        """New worker's state."""
        device = self._flat.device
        squares = (torch.zeros(stop - start, dtype=torch.float32, device=device) for _, start, stop in self._spans)
        return TransformState(tuple(squares), torch.zeros((), dtype=torch.float32, device=device))

    @torch.no_grad()
    def clip(self) -> None:
        """Clip unscaled gradients; all NaN if their norm is not finite."""
        if self._clip_norm:
            norm = _norm(self._flat)
            factor = torch.where(norm.isfinite(), (self._clip_norm / norm).clamp(max=1.0), math.nan)
            for group in self._flat.groups:
                group.gradients.mul_(factor)

    @torch.no_grad()
    def direct(self, state: TransformState) -> None:
        """Replace gradients by directions; all NaN, `state` unchanged, if their norm is not finite."""
        if not self._has_direction:
            return
        is_finite = _norm(self._flat).isfinite()
        factor = torch.where(is_finite, 1.0, math.nan)
        state.weight = torch.where(is_finite, BETA2 * state.weight + (1 - BETA2), state.weight)
        for span, square in zip(self._spans, state.squares, strict=True):
            values = self._flat.groups[span.group].gradients[span.start : span.stop]
            _normalise(values, square, factor * state.weight, is_finite)
        for number in self._matrices:
            gradient = self._flat.trained[number].gradient
            gradient.copy_(spectral_direction(gradient).mul_(factor))


def spectral_direction(gradient: Tensor) -> Tensor:
    """A matrix's direction."""
    matrix = gradient.flatten(1)
    return orthogonalise(matrix).mul_(_ADAM_RMS * math.sqrt(max(matrix.shape))).view(gradient.shape)


def orthogonalise(matrix: Tensor) -> Tensor:
    """Move singular values to 0.68 to 1.14, smaller ones than about 1e-3 of the norm less; zeros stay.

    Returns bfloat16 on CUDA, else float32.
    """
    # Otherwise squares may overflow or vanish.
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


def _normalise(values: Tensor, square: Tensor, weight: Tensor, is_finite: Tensor) -> None:
    gradient = values.float()
    updated = (BETA2 * square).addcmul_(gradient, gradient, value=1 - BETA2)
    torch.where(is_finite, updated, square, out=square)
    root = torch.div(square, weight, out=updated).sqrt_().add_(EPSILON)
    values.copy_(torch.div(gradient, root, out=root))


def _norm(flat: FlatModel) -> Tensor:
    gradients = [group.gradients for group in flat.groups]
    norms = [torch.linalg.vector_norm(one if one.dtype is torch.float64 else one.float()).float() for one in gradients]
    total: Tensor = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    return total


def matrices_of(flat: FlatModel) -> tuple[int, ...]:
    """Their numbers in `flat.trained`."""
    embedding = {one.spec.name for one in flat.tensors if one.spec.is_embedding}
    shapes = {one.tensor.shape for one in flat.trained if one.name in embedding}
    found = [
        number
        for number, one in enumerate(flat.trained)
        if one.tensor.ndim >= 2 and one.tensor.numel() and one.name not in embedding
    ]
    if found and flat.trained[found[-1]].tensor.shape in shapes:
        found.pop()
    return tuple(found)


def _spans(flat: FlatModel, matrices: tuple[int, ...]) -> tuple[_Span, ...]:
    """Longest runs of elements outside `matrices`."""
    spans = []
    for number, group in enumerate(flat.groups):
        taken = [flat.trained[one] for one in matrices if group.start <= flat.trained[one].start < group.stop]
        borders = [(one.start, one.start + one.tensor.numel()) for one in taken]
        stops = [(group.start, group.start), *borders, (group.stop, group.stop)]
        for (_, start), (stop, _) in itertools.pairwise(stops):
            if start < stop:
                spans.append(_Span(number, start - group.start, stop - group.start))
    return tuple(spans)
