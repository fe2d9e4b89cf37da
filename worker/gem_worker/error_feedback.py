"""Error feedback: what a delta in blocks leaves out is added to the next one (Seide and others, 2014)."""

import torch
from torch import Tensor

from gem_core.wire_types import WireType
from gem_worker import wire_casts


class ErrorFeedback:
    """Encodes deltas of one wire type; `like` has their shape and device."""

    def __init__(self, wire_type: WireType, like: Tensor) -> None:
        self._wire_type = wire_type
        self._left_out = torch.zeros_like(like)

    @property
    def left_out(self) -> Tensor:
        """What all deltas so far have left out, scaled as they were."""
        return self._left_out

    def encode_next(self, values: Tensor, factor: float, payload: Tensor) -> None:
        """Multiply finite `values` by `factor`; encode them and what was left out into `payload`."""
        self._left_out.add_(values.mul_(factor))  # not `alpha`, which rounds once
        wire_casts.encode(self._wire_type, self._left_out, payload)
        wire_casts.subtract(self._wire_type, payload, self._left_out)

    def undo(self, values: Tensor, payload: Tensor) -> None:
        """Undo the last `encode_next`, of these `values`: its `payload` is not sent."""
        sent = torch.empty_like(self._left_out)
        wire_casts.decode(self._wire_type, payload, sent)
        self._left_out.add_(sent).sub_(values)
