"""A worker's steps between two commits.

w <- w - rate * eta * step(gradient), except before a commit, which is -eta times the sum of the gradients (easgd.py) or
their mean (agn.py, gem.py).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gem_core.worker_step import WorkerStep
from gem_worker.flat_model import FlatModel
from gem_worker.gradient_transform import BETA2, EPSILON

CAP = 5.0


@dataclass(slots=True)
class LocalState:
    """One worker's mean of squares of its commits, with its weight, and 1 / root of it, at first 0; by group."""

    squares: tuple[Tensor, ...]
    factors: tuple[Tensor, ...]
    weight: Tensor


class LocalSteps:
    """Accumulates the gradients of `flat` for a commit.

    Preconditioned steps are clamp(gradient / (root(squares / weight) + 1e-8), -5, 5).
    """

    def __init__(self, flat: FlatModel, step: WorkerStep) -> None:
        self._flat = flat
        self._step = step
        self._taken = 0
        self._sums = [torch.zeros_like(group.gradients) for group in flat.groups] if self.enabled else []

    @property
    def steps(self) -> int:
        """Local steps per commit."""
        return self._step.local_steps if self.enabled else 0

    @property
    def enabled(self) -> bool:
        """Whether a commit has several gradients."""
        return self._step.local_steps > 1

    def new_state(self) -> LocalState:
        """New worker's state."""
        sums = self._sums if self._step.preconditioned else []
        squares, factors = (tuple(torch.zeros_like(one, dtype=torch.float32) for one in sums) for _ in range(2))
        return LocalState(squares, factors, torch.zeros((), dtype=torch.float32, device=self._flat.device))

    @torch.no_grad()
    def accumulate(self, eta: float, state: LocalState) -> bool:
        """Take the gradients.

        True: they now hold what to commit. False: they were applied locally, and zeroed.
        """
        if not self.enabled:
            return True
        self._taken += 1
        is_last = self._taken == self._step.local_steps
        for number, (group, total) in enumerate(zip(self._flat.groups, self._sums, strict=True)):
            total.add_(group.gradients)
            if is_last:
                group.gradients.copy_(total.div_(self._taken) if self._step.normalise else total)
            elif not self._step.preconditioned:
                group.parameters.add_(group.gradients, alpha=-self._step.rate * eta)
            else:
                step = (group.gradients * state.factors[number]).clamp_(-CAP, CAP)
                group.parameters.add_(step, alpha=-self._step.rate * eta)
        if is_last:
            self._remember(state)
            self.begin()
        else:
            self._flat.zero_gradients()
        return is_last

    def begin(self) -> None:
        """Discard the accumulated gradients."""
        self._taken = 0
        for total in self._sums:
            total.zero_()

    def _remember(self, state: LocalState) -> None:
        if not state.squares:
            return
        groups = self._flat.groups
        is_finite = torch.stack([group.gradients.isfinite().all() for group in groups]).all()
        state.weight = torch.where(is_finite, BETA2 * state.weight + (1 - BETA2), state.weight)
        for group, square, factor in zip(groups, state.squares, state.factors, strict=True):
            gradient = group.gradients.float()
            updated = (BETA2 * square).addcmul_(gradient, gradient, value=1 - BETA2)
            torch.where(is_finite, updated, square, out=square)
            torch.div(square, state.weight, out=updated).sqrt_().add_(EPSILON).reciprocal_()
            torch.where(is_finite, updated, factor, out=factor)
