"""Directions of workers and the server's rule `gem`, as functions of explicit state (docs/default.md).

All vectors are float32 tensors of the model's parameters in layout order, [parameter_count].
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from gem_worker.gradient_transform import spectral_direction
from torch import Tensor

LARGEST_STEP = 5.0
_TINY = 1e-12


class Matrix(NamedTuple):
    """A hidden matrix in the flat vector: its first element and its shape."""

    start: int
    shape: torch.Size


@dataclass(slots=True)
class DirectionState:
    """One worker's momentum and mean square, and the number of gradients in them."""

    moment: Tensor
    square: Tensor
    count: int = 0


def clip(gradient: Tensor, largest_norm: float) -> Tensor:
    """Scale `gradient` down to `largest_norm`, as the workers do; 0: no limit."""
    if not largest_norm:
        return gradient
    return gradient * (largest_norm / torch.linalg.vector_norm(gradient)).clamp(max=1.0)


def with_momentum(gradient: Tensor, state: DirectionState, momentum: float) -> Tensor:
    """Nesterov's momentum of the gradients including this one, divided by the sum of its weights."""
    state.count += 1
    if not momentum:
        return gradient
    state.moment.mul_(momentum).add_(gradient, alpha=1 - momentum)
    ahead = momentum * state.moment + (1 - momentum) * gradient
    return ahead.div_(1 - momentum ** (state.count + 1))


def orthogonalised(gradient: Tensor, matrices: tuple[Matrix, ...]) -> Tensor:
    """Newton-Schulz on each of the matrices; everything else stays."""
    result = gradient.clone()
    for start, shape in matrices:
        part = result[start : start + shape.numel()].view(shape)
        part.copy_(spectral_direction(part))
    return result


def rms_normalised(values: Tensor, state: DirectionState, beta2: float, epsilon: float) -> Tensor:
    """Divide by the root of the bias-corrected mean square; at most `LARGEST_STEP` either way."""
    state.square.mul_(beta2).addcmul_(values, values, value=1 - beta2)
    root = (state.square / (1 - beta2**state.count)).sqrt_().add_(epsilon)
    return (values / root).clamp_(-LARGEST_STEP, LARGEST_STEP)


class Gem(NamedTuple):
    """Settings of the server's rule. With a signed gap, only what others moved in the delta's own direction counts."""

    momentum: float = 0.9
    kappa: float = 1.0
    pi_max: float = 5.0
    signed_gap: bool = False


def apply_gem(theta: Tensor, snapshot: Tensor, moment: Tensor, delta: Tensor, rule: Gem) -> float:
    """Apply a worker's delta to `theta` and its moment in place; return the mean of pi (gem_core/rules/gem.py)."""
    moment.mul_(rule.momentum).add_(delta)
    drift = theta - snapshot
    gap = drift.mul_(delta.sign()).clamp_(min=0) if rule.signed_gap else drift.abs_()
    pi = (moment.abs().mul_(rule.kappa) - gap).div_(delta.abs().add_(_TINY)).clamp_(0, rule.pi_max)
    theta.add_(pi * delta)
    return pi.mean().item()
