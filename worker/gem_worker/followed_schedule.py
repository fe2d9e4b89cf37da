"""Learning rate schedules that follow the run instead of this worker's own steps.

A schedule depends on how far the training is. With several workers that is the run's progress (Verdict.progress: the
number of commits divided by the number of workers). If a schedule followed the steps of its own worker, a slow worker's
would lag behind, and a fast worker's would end early. So the script still calls `scheduler.step()` as often as it would
without gemps, and each call moves the scheduler to where the run is.
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
    """How far the run and this worker are.

    Attributes:
        progress: the run's progress in commits of one worker. It includes what this worker has computed and not yet
            committed.
        commits: the number of commits of this worker in this process, which includes the same fraction.
    """

    progress: float
    commits: float


@dataclass(slots=True)
class _FirstCall:
    """The script's first call of a scheduler after a step of this worker, in a run that had begun when it joined.

    Attributes:
        progress: the run's progress at this call.
        commits: the commits of this worker at this call. Further calls at the same number of commits count as part of
            the first.
        calls: the number of these calls.
        stands: the schedule's position before the call. It is 0 if the script had not restored the schedule.
    """

    progress: float
    commits: float
    calls: int
    stands: int

    @property
    def expected(self) -> int:
        """The position to which these calls would move the schedule without gemps."""
        return self.stands + self.calls


class FollowedSchedule:
    """A scheduler whose `step` follows the run until `close`.

    When the script has called it k times since this worker's first step, and this worker has made c commits, the
    scheduler's position is round(progress k / c) steps from the start of its schedule. So the script may call it at
    each step, at each epoch or twice a step, and the scheduler of a restarted worker catches up at its first call. The
    position never decreases. The scheduler's class is replaced, and not its attributes, because these are saved by its
    `state_dict`.

    Calls before the worker's first step do not show how many calls belong to a commit. In a new run they advance the
    schedule as they would without gemps; in a run that has begun they have no effect until the first step. In a new
    run, a schedule that the script has restored continues from its restored position.

    A worker that joins a run that has begun may do so in the middle of an epoch, so its first call may come after any
    number of steps. From the second call on, calls and commits are therefore counted from the first call. The first
    call itself has this effect:

    - a schedule that the script has restored moves as it would without gemps. If it is then more than a step ahead of
      the run, the run itself was begun with a restored schedule, and later calls keep this lead;
    - any other schedule moves to where the run is, judged by this call alone. If the first epoch was shorter than the
      others, this is too far, and the schedule then waits until the run has caught up.
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
            """Copy and pickle the scheduler as an object of its original class, which does not follow the run."""
            followed, scheduler.__class__ = scheduler.__class__, self._class
            try:
                return scheduler.__reduce_ex__(1)  # protocols from 2 on require the object's present class
            finally:
                scheduler.__class__ = followed

        members = {"step": step, "__reduce_ex__": reduce, "__module__": self._class.__module__}
        scheduler.__class__ = type(self._class.__name__, (self._class,), members)

    def close(self) -> None:
        """Restore the scheduler's own `step`. Warn if the script never called it."""
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
        """Return the position that the schedule should have, in steps from its start."""
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

    A scheduler marks the `step` of its optimizer when it is created. This mark distinguishes its rates from those that
    a script sets by hand, for example from `ParameterServer.progress`. A scheduler that is created after the worker has
    joined is not noticed.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._name = type(optimizer).__name__
        self._is_watching = hasattr(optimizer.step, "_wrapped_by_lr_sched")
        self._first: float | None = None

    def compare(self, rate: float) -> None:
        """Compare the rate of a commit with that of the first one."""
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
        TypeError: the argument is no torch.optim.lr_scheduler.LRScheduler and no list of them.
        UnsupportedOptimizerError: a scheduler that does not depend on the number of steps alone.
    """
    given = () if schedulers is None else (schedulers,) if isinstance(schedulers, LRScheduler) else schedulers
    found = tuple({id(one): one for one in given}.values())  # without repetitions
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
    """Whether the scheduler belongs to this optimizer, or to a wrapper that has the same parameter groups."""
    return getattr(scheduler.optimizer, "param_groups", None) is optimizer.param_groups


def _steps_of(scheduler: LRScheduler) -> int:
    """Return a schedule's position in steps. ChainedScheduler has no own count, and subclasses may begin at -1."""
    if isinstance(scheduler, ChainedScheduler):
        return _steps_of(scheduler._schedulers[0])
    return max(0, int(scheduler.last_epoch))


def _last_step(scheduler: LRScheduler) -> float:
    """Return the last step of a schedule, or infinity. OneCycleLR raises an error in a later step."""
    if isinstance(scheduler, OneCycleLR):
        return scheduler.total_steps - 1
    nested: Sequence[LRScheduler] = getattr(scheduler, "_schedulers", ())
    if isinstance(scheduler, SequentialLR):
        return scheduler._milestones[-1] + _last_step(nested[-1]) if nested else float("inf")
    return min(map(_last_step, nested), default=float("inf"))
