"""torch.amp.GradScaler over flat gradients, with an optimizer that never steps."""

import operator

import torch
from torch import Tensor

from gem_worker.flat_model import FlatModel


class LossScaler:
    """Unscales once per step, then updates the scaler."""

    def __init__(self, flat: FlatModel) -> None:
        self._flat = flat
        self._optimizer: torch.optim.Optimizer | None = None
        self._gradients: tuple[Tensor, ...] = ()
        self._is_unscaled = self._is_marked = False

    def unscale(self, scaler: object) -> None:
        """Divide the gradients by the scale, once per `update`.

        Raises TypeError if `scaler` is no GradScaler, which itself rejects float16 parameters.
        """
        if scaler is None or self._is_unscaled:
            return
        as_scaler(scaler).unscale_(self._holder())
        self._is_unscaled = True

    @torch.no_grad()
    def prepare(self, scaler: object) -> None:
        """Unscale; if the script did, mark an overflow by NaN: clipping may have hidden it."""
        if scaler is None or self._is_marked:
            return
        if not self._is_unscaled:
            self.unscale(scaler)
            return
        self._is_marked = True
        has_stepped = as_scaler(scaler).step(self._holder())
        if not has_stepped:
            for group in self._flat.groups:
                group.gradients.fill_(torch.nan)

    def update(self, scaler: object) -> None:
        """Update the scale."""
        self._is_unscaled = self._is_marked = False
        if scaler is not None:
            as_scaler(scaler).update()

    def _holder(self) -> torch.optim.Optimizer:
        gradients = tuple(group.gradients for group in self._flat.groups)
        if self._optimizer is None or any(map(operator.is_not, gradients, self._gradients)):  # they may move
            self._gradients = gradients
            self._optimizer = torch.optim.SGD([_leaf(g.parameters, g.gradients) for g in self._flat.groups], lr=0.0)
            self._optimizer.step = lambda closure=None: 1.0  # type: ignore[method-assign]  # not None
        return self._optimizer


def _leaf(values: Tensor, gradient: Tensor) -> Tensor:
    leaf = values.detach().requires_grad_()
    leaf.grad_dtype = gradient.dtype
    leaf.grad = gradient
    return leaf


def as_scaler(scaler: object) -> torch.amp.GradScaler:
    """Raise TypeError unless it is a GradScaler."""
    if not isinstance(scaler, torch.amp.GradScaler):
        raise TypeError(f"scaler is a {type(scaler).__name__}; pass the torch.amp.GradScaler that scaled the loss")
    return scaler
