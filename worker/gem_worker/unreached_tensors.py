"""Finds the trained tensors that no backward pass reaches, such as a head that is not in use.

PyTorch's optimizers skip a parameter whose `grad` is None, and do not decay it either. A worker's gradients are views
of one vector and never None. Therefore a tensor whose gradients have all been 0 since the worker joined is treated like
one whose gradient is None. If its first gradients are 0 by chance, its decay begins a few steps later.

A decay that is added to the gradient (Adam, SGD) is not applied to such tensors. A decoupled decay (AdamW, Muon) is
applied by the server to whole groups, and is left out where no tensor of the group has a gradient. If some tensors of
the group have gradients and others do not, a warning says what to do.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gem_worker.flat_model import FlatModel, TrainedTensor

_log = logging.getLogger(__name__)

# Steps before the warning. Layers that begin at 0 pass no gradients on for a step or two.
_STEPS = 20
_NAMES_SHOWN = 5
_MEANS = {"exp_avg_sq", "exp_avg", "momentum_buffer"}
_NOTHING = torch.zeros(1)


class UnreachedTensors:
    """The tensors of `flat` that have had no gradient so far. Not thread-safe.

    Args:
        flat: the model's gradients.
        group_of: the group of each tensor of `flat.trained`.
        state: the optimizer's state. A tensor whose mean of squares there is not 0 has had a gradient before.
    """

    def __init__(self, flat: FlatModel, group_of: Sequence[int], state: Mapping[Tensor, Mapping[str, Any]]) -> None:
        self._state = state
        self._left: list[tuple[int, TrainedTensor]] = list(zip(group_of, flat.trained, strict=True))
        self._reached: set[int] = set()
        self._steps = 0
        self._take_out([state.get(one.tensor, {}).get("exp_avg_sq", _NOTHING) for _, one in self._left])

    def update(self) -> None:
        """Check the gradients of a step after they were collected."""
        self._steps += 1
        self._take_out([one.gradient for _, one in self._left])

    def has_reached(self, group: int) -> bool:
        """Whether any tensor of a group has had a gradient."""
        return group in self._reached

    def clear(self) -> None:
        """Set these tensors' gradients and means to 0, because a decay that was added to them changed both."""
        for _, one in self._left:
            one.gradient.zero_()
            state = self._state.get(one.tensor, {})
            for name in _MEANS & state.keys():
                state[name].zero_()

    def warn(self, decays: Sequence[float]) -> None:
        """Warn once of tensors that decay without a gradient. `decays` has the decay of each group."""
        if self._steps != _STEPS or not self._left:
            return
        decaying = {group for group, decay in enumerate(decays) if decay and self.has_reached(group)}
        shrunk = [one.name for group, one in self._left if group in decaying]
        if shrunk:
            more = f" and {len(shrunk) - _NAMES_SHOWN} more" if len(shrunk) > _NAMES_SHOWN else ""
            _log.warning(
                "no backward pass has reached these parameters in %d steps, and the weight decay of their group "
                "shrinks them all the same: %s%s. Freeze them with requires_grad_(False) before "
                "ParameterServer(...), or put them into a parameter group of their own",
                _STEPS,
                ", ".join(shrunk[:_NAMES_SHOWN]),
                more,
            )

    def _take_out(self, seen: Sequence[Tensor]) -> None:
        """Remove the tensors from the list whose values in `seen` are not all 0."""
        if not seen:
            return
        # One transfer from the device for all tensors.
        found = torch.stack([one.any().to(seen[-1].device) for one in seen]).tolist()
        self._reached.update(group for (group, _), is_reached in zip(self._left, found, strict=True) if is_reached)
        self._left = [pair for pair, is_reached in zip(self._left, found, strict=True) if not is_reached]
