"""Learning rate schedules that follow the run instead of this worker's own steps.

A schedule says how far a training is. With several workers that is the run's progress (Verdict.progress: commits over
workers), not the steps of one of them: a slow worker's schedule would lag behind, and a fast one's would end early. So
the script still calls `scheduler.step()` as often as it did, and the scheduler moves as far as the run has.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, SupportsIndex

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, OneCycleLR, ReduceLROnPlateau, SequentialLR

from gem_worker.errors import UnsupportedOptimizerError

Schedulers = LRScheduler | Sequence[LRScheduler]
_log = logging.getLogger(__name__)


class Position(NamedTuple):
    """Where the run and this worker are.

    Attributes:
        progress: of the run, in commits of one worker, with what this worker has not committed yet.
        commits: of this worker in this process, likewise.
    """

    progress: float
    commits: float


class FollowedSchedule:
    """A scheduler whose `step` follows the run until `close`.

    After k calls of the script since this worker's first step, in c commits of this worker, it stands at
    round(progress k / c) steps, counted from the start of its schedule. So it does not matter whether the script calls
    it at each step, at each epoch or twice a step, and the scheduler of a worker that was restarted catches up at its
    first call. It never goes back. Its class is replaced, not its attributes, which are its `state_dict`.

    Calls before the worker's first step do not tell how many calls a commit has. In a new run they move the schedule
    ahead, as they would alone; in a run that has begun they wait for the first step.

    A script that restores its schedule may go on in the middle of an epoch, so its first call may come after any number
    of steps, and tells nothing either: the schedule moves at most one step, and calls and commits count from there.
    """

    def __init__(self, scheduler: LRScheduler, position: Callable[[], Position]) -> None:
        self._scheduler = scheduler
        self._position = position
        self._calls = self._ahead = 0
        self._uncounted = 0  # steps that the scheduler itself does not count
        self._origin = 0, 0.0  # calls and commits from which both are counted
        self._limit = _last_step(scheduler)
        self._class = type(scheduler)

        def step(_: LRScheduler, epoch: float | None = None) -> None:
            self._step(epoch)

        def reduce(scheduler: LRScheduler, _: SupportsIndex) -> Any:
            """Have copies, saved ones too, be of the class itself: they follow nothing, and have its own `step`."""
            followed, scheduler.__class__ = scheduler.__class__, self._class
            try:
                return scheduler.__reduce_ex__(1)  # from 2 on pickle insists on the object's present class
            finally:
                scheduler.__class__ = followed

        members = {"step": step, "__reduce_ex__": reduce, "__module__": self._class.__module__}
        scheduler.__class__ = type(self._class.__name__, (self._class,), members)

    def close(self) -> None:
        """Give the scheduler its own `step` back; warn if the script never called it."""
        self._scheduler.__class__ = self._class
        _, commits = self._position()
        if commits and not self._calls + self._ahead:
            _log.warning(
                "%s was passed as scheduler= and never stepped, so the learning rate has not changed: call "
                "scheduler.step() as without gemps, after ps.step() or after each epoch",
                self._class.__name__,
            )

    def _step(self, epoch: float | None) -> None:
        if epoch is not None:
            raise UnsupportedOptimizerError(
                f"{self._class.__name__}.step({epoch}) sets the schedule's position, which follows the run: call "
                "step() without an argument, or leave scheduler= out and compute the position from ps.progress"
            )
        progress, commits = self._position()
        stands = _steps_of(self._scheduler) + self._uncounted
        if commits:
            self._calls += 1
        elif not progress:
            self._ahead += 1
        is_restored = self._calls == 1 and self._origin[0] == 0 and stands > self._ahead
        target = int(min(self._ahead + self._followed(progress, commits), self._limit))
        if is_restored:
            self._origin = 1, commits
            target = min(target, stands + 1)
        for _ in range(target - stands):
            before = _steps_of(self._scheduler)
            self._class.step(self._scheduler)
            self._uncounted += 1 - (_steps_of(self._scheduler) - before)

    def _followed(self, progress: float, commits: float) -> int:
        """Where the run is, in calls of the script; 0 as long as no commit says how many calls it has."""
        calls, since = self._calls - self._origin[0], commits - self._origin[1]
        return round(progress * calls / since) if since else 0


def as_schedulers(schedulers: Schedulers | None) -> tuple[LRScheduler, ...]:
    """Check the argument `scheduler`.

    Raises:
        TypeError: not a torch.optim.lr_scheduler.LRScheduler, or a list of them.
        UnsupportedOptimizerError: a scheduler that does not depend on the number of steps alone.
    """
    given = () if schedulers is None else (schedulers,) if isinstance(schedulers, LRScheduler) else schedulers
    found = tuple({id(one): one for one in given}.values())  # each once
    for one in found:
        if isinstance(one, ReduceLROnPlateau):
            raise UnsupportedOptimizerError(
                "ReduceLROnPlateau follows the losses of one worker, not the run's progress: leave it out of "
                "scheduler=, and call its step(loss) yourself"
            )
        if not isinstance(one, LRScheduler):
            raise TypeError(
                f"scheduler is a {type(one).__name__}; pass a torch.optim.lr_scheduler.LRScheduler or a list of them. "
                "Set the learning rate of others from ps.progress"
            )
    return found


def sets_rates_of(optimizer: Optimizer, scheduler: LRScheduler) -> bool:
    """Whether the scheduler is of this optimizer, or of a wrapper with its parameter groups."""
    return getattr(scheduler.optimizer, "param_groups", None) is optimizer.param_groups


def _steps_of(scheduler: LRScheduler) -> int:
    """How far a schedule is; ChainedScheduler does not count itself, and a subclass may begin at -1."""
    if isinstance(scheduler, ChainedScheduler):
        return _steps_of(scheduler._schedulers[0])
    return max(0, int(scheduler.last_epoch))


def _last_step(scheduler: LRScheduler) -> float:
    """The last step that a schedule has: OneCycleLR raises an error behind it."""
    if isinstance(scheduler, OneCycleLR):
        return scheduler.total_steps - 1
    nested: Sequence[LRScheduler] = getattr(scheduler, "_schedulers", ())
    if isinstance(scheduler, SequentialLR):
        return scheduler._milestones[-1] + _last_step(nested[-1]) if nested else float("inf")
    return min(map(_last_step, nested), default=float("inf"))
