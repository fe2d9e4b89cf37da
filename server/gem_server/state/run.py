"""The run: its state, its budget, and the learning rate to use next.

    WAITING (no parameters, or fewer than min_workers) -> TRAINING -> FINISHED

Refuses to know sessions and queues: whoever changes what the run depends on calls one of its methods. The event loop's
thread only.
"""

import math
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from gem_server.errors import Reason, Refusal
from gem_server.state.schedule import EtaSchedule
from gem_server.state.workers import Worker


class RunState(StrEnum):
    """Where the run stands, for one worker or as a whole."""

    WAITING = "waiting"
    TRAINING = "training"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Budget:
    """When the run is finished: applied commits a worker, passes a worker, applied commits in all; 0: no such limit."""

    steps: int = 0
    epochs: float = 0.0
    commits: int = 0

    def limit_of(self, steps_per_epoch: int) -> int | None:
        """Applied commits that one worker may make; None: only it can tell, or there is no such limit."""
        limits = [self.steps] if self.steps else []
        if self.epochs and steps_per_epoch:
            limits.append(math.ceil(self.epochs * steps_per_epoch))
        return min(limits) if limits else None


class Run:
    """State, budget and identity (the same after every restart) of the run.

    A complete commit reserves its part of the budget when it enters the queue, so that a complete commit is always
    applied: `reserve` may refuse, `applied` may not.
    """

    def __init__(self, budget: Budget, schedule: EtaSchedule, min_workers: int) -> None:
        self.budget = budget
        self.schedule = schedule
        self.min_workers = min_workers
        self.commits = 0
        self.commits_before = 0  # of `commits`, those that earlier processes of the run applied
        self.reserved = 0
        self._left = 0  # commits that the workers' own budgets have room for, of those that take part
        self.started = False
        self.finished_because: str | None = None
        self.identity = secrets.token_hex(8)
        self.on_change: list[Callable[[], None]] = []

    @property
    def state(self) -> RunState:
        """The state of the run as a whole."""
        if self.finished_because is not None:
            return RunState.FINISHED
        return RunState.TRAINING if self.started else RunState.WAITING

    def state_for(self, worker: Worker) -> RunState:
        """The state as it concerns one worker: FINISHED as soon as its own budget is spent."""
        return RunState.FINISHED if worker.done else self.state

    @property
    def next_eta(self) -> float:
        """The learning rate for the next delta."""
        return self.schedule.at(self.commits, self.expected_commits)

    @property
    def expected_commits(self) -> int:
        """Commits that the run ends with if no other worker comes or goes; 0: no budget says.

        The sum of what the budgets of the participating workers have left, limited by the budget of the run.
        """
        has_limits = self.budget.steps or self.budget.epochs
        ends = (self.budget.commits, self.commits + self._left if has_limits else 0)
        return min(filter(None, ends), default=0)

    @property
    def commits_of_process(self) -> int:
        """Commits that this process applied."""
        return self.commits - self.commits_before

    def consider_start(self, has_parameters: bool, workers: int) -> None:
        """Begin training once there are parameters and enough workers (live ones, and any that are done already).

        A run that was finished before this process stays as it is, however many come.
        """
        if not self.started and self.finished_because is None and has_parameters and workers >= self.min_workers:
            self.started = True
            self._changed()

    def check_limit(self, steps_per_epoch: int) -> None:
        """Raise MALFORMED when eta follows the workers' budgets, and this worker does not say what its own is."""
        if self.schedule.follows_budget and self.budget.epochs and self.budget.limit_of(steps_per_epoch) is None:
            raise Refusal(
                Reason.MALFORMED,
                "the budget is in epochs, and --eta-schedule cosine follows it: give ParameterServer "
                "steps_per_epoch=len(loader), or the server --eta-decay-commits",
            )

    def count(self, worker: Worker, *, takes_part: bool) -> None:
        """Count what this worker has left of its budget to the run's length, or no longer."""
        if worker.takes_part != takes_part:
            worker.takes_part = takes_part
            self._left += worker.left if takes_part else -worker.left

    def check_open(self, worker: Worker) -> None:
        """Raise RUN_FINISHED when no further commit of this worker can be taken."""
        if self.finished_because is not None:
            raise Refusal(Reason.RUN_FINISHED, f"the run is finished ({self.finished_because}): leave, and exit 0")
        if worker.done or (worker.limit is not None and worker.commits + worker.reserved >= worker.limit):
            raise Refusal(
                Reason.RUN_FINISHED,
                f"worker {worker.name} has spent its budget of {worker.limit} commits: leave, and exit 0",
            )
        if self.budget.commits and self.all_reserved:
            raise Refusal(
                Reason.RUN_FINISHED, f"the run's budget of {self.budget.commits} commits is spent: leave, and exit 0"
            )

    @property
    def unreserved(self) -> float:
        """Commits that the run's budget has room for beside those that were applied, or are complete and will be."""
        return self.budget.commits - self.commits - self.reserved if self.budget.commits else math.inf

    @property
    def all_reserved(self) -> bool:
        """Whether there is no such room."""
        return self.unreserved <= 0

    def reserve(self, worker: Worker) -> None:
        """Set the budget of one commit aside; raises RUN_FINISHED when there is none left."""
        self.check_open(worker)
        self.reserved += 1
        worker.reserved += 1

    def applied(self, worker: Worker) -> None:
        """A reserved commit was applied."""
        self.reserved -= 1
        worker.reserved -= 1
        self.commits += 1
        if worker.takes_part and worker.left:
            self._left -= 1
        worker.commits += 1
        if worker.limit is not None and worker.commits >= worker.limit:
            worker.done = True
        if self.budget.commits and self.commits >= self.budget.commits:
            self.finish(f"{self.commits} commits")

    def consider_finish(self, live_workers: Iterable[Worker], anyone_done: bool) -> None:
        """Finish when some worker has spent its own budget and no live worker has any left."""
        if self.started and self.finished_because is None and anyone_done and all(w.done for w in live_workers):
            self.finish("every worker has spent its budget")

    def finish(self, because: str) -> None:
        """End the run; harmless when it is finished already."""
        if self.finished_because is None:
            self.finished_because = because
            self._changed()

    def _changed(self) -> None:
        for listener in list(self.on_change):
            listener()
