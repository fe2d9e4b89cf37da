"""Local steps, which a worker makes between two commits without the server.

Each gradient but the last moves the parameters: w <- w - rate * eta * step(gradient). The last one completes a commit,
which is -eta times the direction of the sum of the gradients (rule easgd) or of their mean (rules agn and gem).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gem_core.worker_step import WorkerStep
from gem_worker.flat_model import FlatModel
from gem_worker.gradient_transform import BETA2, EPSILON

CAP = 5.0
# Sums are limited to this magnitude, whose square is finite in float32.
LARGEST = 1e18


@dataclass(slots=True)
class LocalState:
    """One worker's state, 0 at first.

    Attributes:
        squares: for each flat group, the mean of squares of the worker's commits.
        factors: for each flat group, 1 / (root(squares / weight) + 1e-8).
        weight: the sum of the weights of all squares in the mean.
    """

    squares: tuple[Tensor, ...]
    factors: tuple[Tensor, ...]
    weight: Tensor


class LocalSteps:
    """Accumulates the gradients of `flat` for a commit.

    Scaled steps are clamp(gradient / (root(squares / weight) + 1e-8), -5, 5).
    """

    def __init__(self, flat: FlatModel, step: WorkerStep) -> None:
        self._flat = flat
        self._step = step
        self._taken = 0
        self._sums = [_zeros(group.gradients) for group in flat.groups] if self.enabled else []

    @property
    def enabled(self) -> bool:
        """Whether a commit has several gradients."""
        return self._step.local_steps > 1

    @property
    def taken(self) -> int:
        """Gradients since the last commit."""
        return self._taken

    def new_state(self) -> LocalState:
        """Create the state of a new worker."""
        sums = self._sums if self._step.scaled else []
        squares, factors = (tuple(torch.zeros_like(one, dtype=torch.float32) for one in sums) for _ in range(2))
        return LocalState(squares, factors, torch.zeros((), dtype=torch.float32, device=self._flat.device))

    @torch.no_grad()
    def accumulate(self, eta: float, state: LocalState) -> int:
        """Add the gradients to the sums.

        Returns the number of gradients to commit. If it is 0, they have moved the parameters and are 0 again.
        """
        if not self.enabled:
            return 1
        self._taken += 1
        for group, total in zip(self._flat.groups, self._sums, strict=True):
            if self._taken == 1:
                total.copy_(group.gradients)
            else:
                total.add_(group.gradients)
        if self._taken == self._step.local_steps:
            return self.complete(state)
        for number, group in enumerate(self._flat.groups):
            # A GradScaler's gradients may overflow. The sum keeps these values, so the commit will be skipped.
            step = group.gradients.nan_to_num_(0.0, 0.0, 0.0)
            if self._step.scaled:
                step.mul_(state.factors[number]).clamp_(-CAP, CAP)
            group.parameters.add_(step, alpha=-self._step.rate * eta)
        self._flat.zero_gradients()
        return 0

    @torch.no_grad()
    def complete(self, state: LocalState) -> int:
        """Replace the gradients by what to commit. Returns the number of gradients in it, which may be 0."""
        if taken := self._taken:
            for group, total in zip(self._flat.groups, self._sums, strict=True):
                group.gradients.copy_(total.div_(taken) if self._step.normalise else total)
            self._remember(state)
            self.begin()
        return taken

    def begin(self) -> None:
        """Discard the accumulated gradients."""
        self._taken = 0

    def _remember(self, state: LocalState) -> None:
        if not any(square.numel() for square in state.squares):
            return
        groups = self._flat.groups
        values = [group.gradients for group in groups if group.gradients.numel()]
        extremes = [extreme.float() for one in values for extreme in one.aminmax()]
        is_finite = torch.stack(extremes).isfinite().all()
        state.weight = torch.where(is_finite, BETA2 * state.weight + (1 - BETA2), state.weight)
        for group, square, factor in zip(groups, state.squares, state.factors, strict=True):
            gradient = group.gradients.float().clamp(-LARGEST, LARGEST)
            updated = (BETA2 * square).addcmul_(gradient, gradient, value=1 - BETA2)
            torch.where(is_finite, updated, square, out=square)
            torch.div(square, state.weight, out=updated).sqrt_().add_(EPSILON).reciprocal_()
            torch.where(is_finite, updated, factor, out=factor)


def _zeros(like: Tensor) -> Tensor:
    return torch.zeros_like(like, dtype=torch.promote_types(like.dtype, torch.float32))
