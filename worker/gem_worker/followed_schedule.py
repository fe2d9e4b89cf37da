"""Learning rate schedules that follow the run instead of this worker's own steps.

A schedule says how far a training is. With several workers that is the run's progress (Verdict.progress: commits over
workers), not the steps of one of them: a slow worker's schedule would lag behind, and a fast one's would end early. So
the script still calls `scheduler.step()` as often as it did, and the scheduler moves as far as the run has.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


@dataclass(slots=True)
class _FirstCall:
    """The script's first call of a scheduler behind a step of this worker, in a run that had begun when it joined.

    Attributes:
        progress: of the run then.
        commits: of this worker then; calls that come at the same number of commits belong to the first.
        calls: their number.
        stands: where the schedule stood before; 0: the script had not restored it.
    """

    progress: float
    commits: float
    calls: int
    stands: int

    @property
    def expected(self) -> int:
        """Where these calls would bring the schedule without gemps."""
        return self.stands + self.calls


class FollowedSchedule:
    """A scheduler whose `step` follows the run until `close`.

    After k calls of the script since this worker's first step, in c commits of this worker, it stands at
    round(progress k / c) steps, counted from the start of its schedule. So it does not matter whether the script calls
    it at each step, at each epoch or twice a step, and the scheduler of a worker that was restarted catches up at its
    first call. It never goes back. Its class is replaced, not its attributes, which are its `state_dict`.

    Calls before the worker's first step do not tell how many calls a commit has. In a new run they move the schedule
    ahead, as they would alone; in a run that has begun they wait for the first step. A schedule that the script has
    restored, in a new run, goes on from there.

    A worker that joins a run that has begun may be in the middle of an epoch, so its first call may come after any
    number of steps. Therefore calls and commits count from the first call as soon as there is a second, and until then:

    - a schedule that the script has restored moves as it would alone. If it then stands more than a step ahead of the
      run, the run was begun with a restored schedule, too, and the lead remains;
    - another one goes where the first call says that the run is. That is too far if the first epoch was shorter than
      the others, and the schedule then waits for the run.
    """

    def __init__(self, scheduler: LRScheduler, position: Callable[[], Position]) -> None:
        self._scheduler = scheduler
        self._position = position
        self._has_begun = position().progress > 0
        self._is_called = False
        self._calls = self._ahead = 0
        self._uncounted = 0  # steps that the scheduler itself does not count
        self._first: _FirstCall | None = None
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
        if commits and not self._is_called:
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
        if not self._is_called:
            self._is_called = True
            self._ahead = 0 if self._has_begun else stands
        if commits:
            self._calls += 1
        elif not progress:
            self._ahead += 1
        target = int(min(self._target(progress, commits, stands), self._limit))
        for _ in range(target - stands):
            before = _steps_of(self._scheduler)
            self._class.step(self._scheduler)
            self._uncounted += 1 - (_steps_of(self._scheduler) - before)

    def _target(self, progress: float, commits: float, stands: int) -> int:
        """Where the schedule belongs, in calls of the script."""
        if not self._calls:
            return self._ahead
        if not self._has_begun:
            return self._ahead + round(progress * self._calls / commits)
        first = self._first
        if first is None:
            first = self._first = _FirstCall(progress, commits, 0, stands)
        if commits == first.commits:
            first.calls += 1
            return first.expected if first.stands else round(progress * first.calls / commits)
        share = (self._calls - first.calls) / (commits - first.commits)
        lead = first.expected - first.progress * share if first.stands else 0.0
        return round(progress * share + (lead if lead > 1 else 0.0))


class UnfollowedSchedule:
    """Warns once if a scheduler that was not passed as `scheduler=` moves the learning rate.

    A scheduler marks the `step` of its optimizer when it is made, which tells its rates from those that a script sets
    by hand, as from `ParameterServer.progress`. One that is made after the worker has joined is not noticed.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._name = type(optimizer).__name__
        self._is_watching = hasattr(optimizer.step, "_wrapped_by_lr_sched")
        self._first: float | None = None

    def compare(self, rate: float) -> None:
        """Look at the rate of a commit."""
        self._first = rate if self._first is None else self._first
        if not self._is_watching or rate == self._first:
            return
        self._is_watching = False
        _log.warning(
            "a scheduler has changed the learning rate of %s from %g to %g by this worker's own steps: workers of "
            "different speed get different rates, and one that is started again begins anew. Pass it, "
            "ParameterServer(..., scheduler=scheduler), and it follows the run",
            self._name,
            self._first,
            rate,
        )


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
