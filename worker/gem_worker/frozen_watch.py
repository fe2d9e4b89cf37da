"""Warns of frozen tensors that a script changes, such as a target network or an EMA teacher.

The service compares frozen tensors when a worker joins, and never sends them. If a script changes one afterwards, each
worker has its own value, and only this warning shows it.
"""

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from gem_core.layout import Layout, TensorKind
from gem_worker.model_tensors import ModelTensor

_log = logging.getLogger(__name__)

# Steps between two checks of the tensors, so that their average cost is negligible.
_INTERVAL = 16
_SHOWN = 3
_WAYS_OUT = (
    "pass keep_local=[{module!r}] to ParameterServer, so that each worker keeps its own values, or "
    "send_frozen=[{module!r}], so that the values of the newest commit reach all workers and the run's files"
)


class FrozenWatch:
    """Checks the FROZEN tensors among `tensors` at every 16th step and at the end, and warns once if one has changed.

    An assignment to `.data` and an operation in place are noticed at the next check. PyTorch does not record writes in
    place through `.data`. To notice these, each check also compares one element of one tensor, in turn, so it takes as
    many checks as there are frozen tensors at most.
    """

    def __init__(self, tensors: Sequence[ModelTensor]) -> None:
        self._frozen = [one for one in tensors if one.spec.kind is TensorKind.FROZEN]
        self._traces = [_trace(one.tensor) for one in self._frozen]
        # As text, so that a NaN equals itself.
        self._elements = [_middle_element(one.tensor) for one in self._frozen]
        self._steps = 0

    def count_step(self) -> None:
        """Count a step of the script, and check the tensors at every 16th one."""
        if not self._frozen:
            return
        self._steps += 1
        if self._steps % _INTERVAL == 0:
            self.compare()

    def compare(self) -> None:
        """Check all tensors for assignments and operations in place, and one element of one tensor for its value."""
        if not self._frozen:
            return
        changed = [
            one.spec.name
            for one, before in zip(self._frozen, self._traces, strict=True)
            if _trace(one.tensor) != before
        ]
        number = self._steps // _INTERVAL % len(self._frozen)
        one = self._frozen[number]
        if one.spec.name not in changed and _middle_element(one.tensor) != self._elements[number]:
            changed.append(one.spec.name)
        if changed:
            self._warn(changed)

    def _warn(self, names: list[str]) -> None:
        self._frozen = []
        _log.warning(
            "the script changed frozen tensors after joining: %s. Frozen tensors are not sent, so each worker has its "
            "own values, and a worker that joins later begins with those that it loads. If this is meant, %s",
            _listed(names),
            _WAYS_OUT.format(module=_module_of(names[0])),
        )


def warn_of_own_values(layout: Layout, changed: Sequence[int]) -> None:
    """Warn once of FROZEN tensors whose values in this worker are not those that the run began with.

    The server accepts such values only from a worker that has committed in this run before, and answers with the
    tensors' indices in the layout (`changed`).
    """
    names = [layout.tensors[index].name for index in changed if index < len(layout.tensors)]
    if names:
        _log.warning(
            "frozen tensors have other values than the run began with: %s. This worker was in the run before, so it "
            "keeps its own values. If this is meant, %s",
            _listed(names),
            _WAYS_OUT.format(module=_module_of(names[0])),
        )


def _trace(tensor: Tensor) -> tuple[int, int]:
    """Return numbers that change with an assignment to `.data`, and with an operation in place."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version


@torch.no_grad()
def _middle_element(tensor: Tensor) -> str:
    """Return the element in the middle as text, which is empty for a tensor without elements."""
    if not tensor.numel():
        return ""
    return str(tensor.detach()[tuple(size // 2 for size in tensor.shape)].item())


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _module_of(name: str) -> str:
    """Return the name of the outermost module that contains the tensor, or the tensor's own if it has none."""
    return name.partition(".")[0]
