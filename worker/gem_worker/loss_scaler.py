"""torch.amp.GradScaler over flat gradients, with an optimizer that never steps."""

import operator
from typing import Any

import torch
from torch import Tensor

from gem_worker.flat_model import FlatModel


class _Holder(torch.optim.SGD):
    """Holds flat gradients; `step` only records that GradScaler would step."""

    has_stepped = False

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.has_stepped = True


class LossScaler:
    """Unscales once per step, then updates the scaler."""

    def __init__(self, flat: FlatModel) -> None:
        self._flat = flat
        self._optimizer: _Holder | None = None
        self._gradients: tuple[Tensor, ...] = ()
        self._is_unscaled = False

    def unscale(self, scaler: object) -> None:
        """Divide the gradients by the scale, once per `update`.

        Raises TypeError if `scaler` is no GradScaler, which itself rejects float16 parameters.
        """
        if scaler is None or self._is_unscaled:
            return
        as_scaler(scaler).unscale_(self._holder())
        self._is_unscaled = True

    @torch.no_grad()
    def mark_overflow(self, scaler: object) -> None:
        """Fill the gradients with NaN if they overflowed: clipping may have made them finite."""
        if scaler is None:
            return
        holder = self._holder()
        holder.has_stepped = False
        as_scaler(scaler).step(holder)
        if not holder.has_stepped:
            for group in self._flat.groups:
                group.gradients.fill_(torch.nan)

    def update(self, scaler: object) -> None:
        """Update the scale."""
        self._is_unscaled = False
        if scaler is not None:
            as_scaler(scaler).update()

    def _holder(self) -> _Holder:
        gradients = tuple(group.gradients for group in self._flat.groups)
        if self._optimizer is None or any(map(operator.is_not, gradients, self._gradients)):  # they may move
            self._gradients = gradients
            self._optimizer = _Holder([_leaf(g.parameters, g.gradients) for g in self._flat.groups], lr=0.0)
        return self._optimizer


def _leaf(values: Tensor, gradient: Tensor) -> Tensor:
    leaf = values.detach().requires_grad_()
    leaf.grad = gradient
    return leaf


def as_scaler(scaler: object) -> torch.amp.GradScaler:
    """Raise TypeError unless it is a GradScaler."""
    if not isinstance(scaler, torch.amp.GradScaler):
        raise TypeError(f"scaler is a {type(scaler).__name__}; pass the torch.amp.GradScaler that scaled the loss")
    return scaler
