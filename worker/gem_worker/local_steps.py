"""Plain SGD steps between two commits.

w <- w - eta * gradient, except before a commit, which is -eta times the sum of the gradients (easgd.py) or
their mean (agn.py).
"""

import torch

from gem_worker.flat_model import FlatModel


class LocalSteps:
    """Accumulates `count` (>= 1) gradients of `flat` per commit, averaged if `normalise`."""

    def __init__(self, flat: FlatModel, count: int, *, normalise: bool) -> None:
        self._flat = flat
        self._count = count
        self._normalise = normalise
        self._taken = 0
        self._sums = [torch.zeros_like(group.gradients) for group in flat.groups] if count > 1 else []

    @property
    def steps(self) -> int:
        """Local steps per commit."""
        return self._count if self.enabled else 0

    @property
    def enabled(self) -> bool:
        """Whether `count` exceeds 1."""
        return self._count > 1

    @torch.no_grad()
    def accumulate(self, eta: float) -> bool:
        """Take the gradients.

        True: they now hold what to commit. False: they were applied locally, and zeroed.
        """
        if self._count == 1:
            return True
        self._taken += 1
        is_last = self._taken == self._count
        for group, total in zip(self._flat.groups, self._sums, strict=True):
            total.add_(group.gradients)
            if is_last:
                group.gradients.copy_(total.div_(self._count) if self._normalise else total)
            else:
                group.parameters.add_(group.gradients, alpha=-eta)
        if is_last:
            self.begin()
        else:
            self._flat.zero_gradients()
        return is_last

    def begin(self) -> None:
        """Discard the accumulated gradients."""
        self._taken = 0
        for total in self._sums:
            total.zero_()
