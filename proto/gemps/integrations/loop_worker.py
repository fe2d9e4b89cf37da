"""What the callbacks share."""

import atexit
import os
import signal
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from gem_worker import ClientError, ParameterServer
from gem_worker.termination import TerminatedError, termination
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

ALONE = (
    "gemps itself divides the work among processes with one device each: start the script by `gemps train --workers N "
    "-- python SCRIPT.py`"
)


# From SIGTERM to its default action if no callback is called: training may have ended by an error.
HOLD_SECONDS = 120.0


class LoopWorker:
    """Membership of a model that another loop trains."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.ps: ParameterServer | None = None
        self.is_finished = False
        self._settings = settings
        self._is_joined = False
        self._steps = self._samples = 0
        self._until_left = ExitStack()

    def join_run(
        self, model: nn.Module, optimizer: Optimizer, steps_per_epoch: int, schedulers: Iterable[object]
    ) -> None:
        """Join; leave an earlier run.

        `schedulers`: the loop's; those whose position is a number of steps follow the run. Others stay the loop's.
        """
        self.leave("joins again")
        settings: dict[str, Any] = {"steps_per_epoch": steps_per_epoch, **self._settings}
        inner = [getattr(one, "scheduler", one) for one in schedulers]  # Accelerate wraps them
        followed = [one for one in inner if isinstance(one, LRScheduler) and not isinstance(one, ReduceLROnPlateau)]
        self.ps = ParameterServer(model=model, optimizer=optimizer, scheduler=followed, **settings)
        with ExitStack() as stack:
            stack.enter_context(termination.handled())
            self.ps.join()
            stack.enter_context(termination.held(HOLD_SECONDS, _terminate_again))
            self._until_left = stack.pop_all()
        self._is_joined = True
        self._steps = self._samples = 0
        self.is_finished = self.ps.finished
        atexit.register(self.leave, "exit")

    def count(self, steps: int, samples: int) -> None:
        """Count what was trained."""
        self._steps += steps
        self._samples += samples

    def check(self) -> None:
        """Raise TerminatedError after SIGTERM."""
        if termination.has_begun:
            self.terminate()

    def terminate(self) -> None:
        """Commit; leave."""
        try:
            self.exchange(None, is_last=True)
        except ClientError:
            pass
        finally:
            self.leave("terminated")
        raise TerminatedError  # also if an earlier run was not left

    def exchange(self, loss: Tensor | float | None, *, is_last: bool = False) -> None:
        """Exchange if H steps are counted. The end of the run sets `is_finished`."""
        if self.ps is None or not self._is_joined or self.is_finished:
            return
        if not self._steps or (self._steps < self.ps.every and not is_last):
            return
        samples, self._steps, self._samples = self._samples, 0, 0
        try:
            self.ps.exchange(loss, samples)
        except BaseException as error:
            self.leave(f"error: {type(error).__name__}")
            raise
        self.is_finished = self.ps.finished

    def leave(self, reason: str) -> None:
        """Leave if joined."""
        atexit.unregister(self.leave)
        if self.ps is not None and self._is_joined:
            self._is_joined = False
            with self._until_left:
                self.ps.close("finished" if self.is_finished else reason)


def _terminate_again() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
