"""Notices a worker whose commits change nothing, because its gradients are missing, or because it is quarantined.

The server's verdict has the norm of each delta, so a step that changes nothing costs no pass over memory to notice. A
gradient may be 0 for good reasons (a hinge loss that is satisfied, a policy gradient without a reward), so the step
after a delta of zeros looks more closely: autograd raises the version counter of a gradient that it adds to, and a
gradient of None was not written either. If no gradient of the model was touched in two more steps, no backward pass
reached this model, for certain. A quarantined worker's deltas were not zero when it sent them, so the server says so.
"""

import logging
from collections.abc import Sequence

from torch import Tensor

from gem_worker.client import Verdict

_log = logging.getLogger(__name__)

# Steps without any backward pass until the warning. A script may skip a batch, and still call step.
UNTOUCHED_STEPS = 2
# Deltas of zeros until the warning, where backward passes did reach the model.
ZERO_STEPS = 50
# Exchanges in which an optimizer moved nothing. Its gradients cannot be looked at: it has consumed them.
MOTIONLESS_EXCHANGES = 3

_Mark = tuple[tuple[Tensor, int] | None, ...]


class GradientWatch:
    """Warns once of each.

    `suspects`: the last delta was zero, so `begin_step` must be called before the next one is made.
    """

    def __init__(self, trained: Sequence[Tensor], *, has_optimizer: bool) -> None:
        self._trained = trained
        self._has_optimizer = has_optimizer
        self._mark: _Mark = ()
        self._is_untouched = False
        self._zeros = self._untouched = 0
        self._has_warned = False
        self._has_told_quarantine = False
        self.suspects = False

    def begin_step(self) -> None:
        """Find out whether any gradient was touched since the last commit, whose delta was zero."""
        self._is_untouched = all(map(_is_untouched, self._trained, self._mark))

    def committed(self, verdict: Verdict, eta: float) -> None:
        """Take the verdict on a delta that was made with learning rate `eta`."""
        if verdict.withheld:
            if not self._has_told_quarantine:
                self._has_told_quarantine = True
                _log.warning(
                    "the server has quarantined this worker, because half of its last deltas were much larger than "
                    "those of the others, so its steps count as 0. Check its data and the scale of its loss; then an "
                    "operator ends that by gemps readmit WORKER"
                )
        elif _is_zero(verdict):
            if eta and not self._has_warned:  # a warm-up may begin with a learning rate of 0
                self._suspect()
        elif self._zeros:
            self.suspects, self._zeros, self._untouched = False, 0, 0

    def _suspect(self) -> None:
        self._zeros += 1
        if self._has_optimizer:
            if self._zeros == MOTIONLESS_EXCHANGES:
                self._warn(
                    "the optimizer has moved no parameter of the model in the last %d exchanges, so this worker "
                    "contributes nothing. Call loss.backward() before the step, create the optimizer from the "
                    "parameters of the model that ParameterServer(...) was given, and zero gradients only after it",
                    self._zeros,
                )
            return
        self._untouched = self._untouched + 1 if self.suspects and self._is_untouched else 0
        if self._untouched == UNTOUCHED_STEPS:
            self._warn(
                "no backward pass has reached the model in the last %d steps: all of its gradients are missing, so "
                "this worker contributes nothing. Call loss.backward() before each ps.step(), on a loss of the same "
                "model object that ParameterServer(...) was given, and call no zero_grad() between the two",
                self._untouched,
            )
        elif self._zeros == ZERO_STEPS:
            self._warn(
                "every gradient was exactly 0 in the last %d steps, so this worker contributes nothing. Call no "
                "zero_grad() between loss.backward() and ps.step(), and check that the loss depends on the model",
                self._zeros,
            )
        self.suspects = not self._has_warned
        self._mark = tuple(None if one.grad is None else (one.grad, one.grad._version) for one in self._trained)

    def _warn(self, text: str, steps: int) -> None:
        self._has_warned = True
        _log.warning(text, steps)


def _is_zero(verdict: Verdict) -> bool:
    if verdict.pieces:  # shards
        return not any(statistics.delta_norm for statistics, _ in verdict.pieces)
    return not verdict.wire_statistics.delta_norm


def _is_untouched(parameter: Tensor, mark: tuple[Tensor, int] | None) -> bool:
    gradient = parameter.grad
    return gradient is None or (mark is not None and gradient is mark[0] and gradient._version == mark[1])
