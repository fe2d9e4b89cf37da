"""Steps of plain SGD that a worker takes by itself between two commits, where the update rule asks for them.

    w <- w - eta * gradient            after each backward pass, but for the last before a commit
    delta = -eta * (sum of the gradients), divided by their number where the rule says so

so that what is committed is what the local steps would have added to the parameters, or its mean: the sum of local
updates of EASGD (Zhang, Choromanska and LeCun, 2015), the accumulated gradient normalization of Hermans, Spanakis and
Moeckel (2017).
"""

import torch

from gem_worker.flat_model import FlatModel


class LocalSteps:
    """Of one model; the gradients are where `FlatModel` keeps them, collected.

    Args:
        flat: the model.
        count: steps between two commits, at least 1.
        normalise: whether the mean of the gradients is committed, in place of their sum.
    """

    def __init__(self, flat: FlatModel, count: int, *, normalise: bool) -> None:
        self._flat = flat
        self._count = count
        self._normalise = normalise
        self._taken = 0
        self._sums = [torch.zeros_like(group.gradients) for group in flat.groups] if count > 1 else []

    @property
    def are_taken(self) -> bool:
        """Whether there are any: more than one step a commit."""
        return self._count > 1

    @torch.no_grad()
    def take(self, eta: float) -> bool:
        """The gradient of another step is there. True: the gradients are now what has to be committed.

        False: the model has moved on by itself, and its gradients are zero.
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
        """Fresh parameters have come, or a gradient was not finite: what was added up is dropped."""
        self._taken = 0
        for total in self._sums:
            total.zero_()
