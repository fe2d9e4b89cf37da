"""The run's state, budget and learning rate.

WAITING (no parameters, or fewer workers than `wanted_workers`) -> TRAINING -> FINISHED

`min_workers` holds for the first start of a run. A run that had begun before this process started (`go_on`) does not
wait for workers that may be gone for good: the first worker that comes back trains. Only if commits are served in a
strict order does it wait for `min_workers` again, and only until `stop_expecting` ends that. Until then it is also not
finished by workers that have spent their budgets, because the others may still be on their way.

The progress of a run, which schedules of scripts follow, is in steps of one worker. With w workers, live or finished,
each commit sets

    progress <- max(progress, min(progress + 1 / w, commits / w))

Thus it is commits / w as long as no worker goes. If one goes for good, the others' steps count on from there, because
commits / w jumps up. If one comes late or again, progress waits until commits / w has caught up. So a schedule neither
jumps nor goes back, and a run in which every worker takes S steps ends at S.
"""

import math
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from gem_server.errors import Reason, RefusedError
from gem_server.state.schedule import EtaSchedule
from gem_server.state.workers import Worker

# So that sums of 1 / w do not fall behind commits / w.
ROUNDING = 1e-9


class RunState(StrEnum):
    """State of run or worker."""

    WAITING = "waiting"
    TRAINING = "training"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits; steps and epochs are per worker; 0: none. `local_steps`: of each commit."""

    steps: int = 0
    epochs: float = 0.0
    commits: int = 0
    local_steps: int = 1

    def limit_of(self, steps_per_epoch: int) -> int | None:
        """A worker's commits; None: unlimited or unknown."""
        limits = [self.steps] if self.steps else []
        if self.epochs and steps_per_epoch:
            exact = self.epochs * steps_per_epoch / self.local_steps
            limits.append(math.ceil(exact * (1 - 1e-12)))  # 2.2 * 100 is 220.00000000000003
        return min(limits) if limits else None


class Run:
    """State, budget and identity (kept across restarts).

    Queueing a commit reserves budget: `reserve` may raise, `applied` must not.
    """

    def __init__(self, budget: Budget, schedule: EtaSchedule, min_workers: int, name: str = "") -> None:
        self.budget = budget
        self.schedule = schedule
        self.min_workers = min_workers
        self.wanted_workers = min_workers  # to start; less than min_workers once the run has begun
        self.commits = 0
        self.commits_before = 0  # applied by earlier processes
        self.reserved = 0
        self._left = 0  # of participating workers
        self.own_eta: float | None = None  # with a recipe: that of the newest commit
        self.progress = 0.0  # in steps of one worker
        self._counted = 0  # workers that are live or have finished
        self.started = False
        self._expected = 0  # workers that must come before spent budgets finish the run
        self.finished_because: str | None = None
        self._may_go_on = False  # after the end of this process
        self.name = name  # empty: none was given
        self.identity = secrets.token_hex(8)
        self.on_change: list[Callable[[], None]] = []

    @property
    def state(self) -> RunState:
        """State of the run."""
        if self.finished_because is not None:
            return RunState.FINISHED
        return RunState.TRAINING if self.started else RunState.WAITING

    def state_for(self, worker: Worker) -> RunState:
        """FINISHED once the worker's budget is spent."""
        return RunState.FINISHED if worker.done else self.state

    @property
    def next_eta(self) -> float:
        """Learning rate of the next delta; with a recipe, in which workers say it, that of the newest one."""
        if self.own_eta is not None:
            return self.own_eta
        return self.schedule.at(self.commits, self.expected_commits)

    @property
    def expected_commits(self) -> int:
        """Commits at the run's end, with the present workers; 0: unknown."""
        budget = self.budget
        of_workers = self.commits + self._left if budget.steps or budget.epochs else 0
        return min(budget.commits, of_workers) if budget.commits and of_workers else budget.commits or of_workers

    @property
    def commits_of_process(self) -> int:
        """Commits applied by this process."""
        return self.commits - self.commits_before

    def check_named(self, asked: str) -> None:
        """Raise RUN if a worker names another run than this one. A worker or a run without a name fits all."""
        if asked and self.name and asked != self.name:
            raise RefusedError(
                Reason.RUN,
                f"this worker belongs to the run {asked!r} (--run, GEMPS_RUN), and this server's run is {self.name!r} "
                f"(id {self.identity}): give the worker the address of its own run's server, or this run's name",
            )

    def describe_identity(self) -> str:
        """Return the run's name and id as words for people."""
        return f"run {self.name} (id {self.identity})" if self.name else f"run {self.identity}"

    def consider_start(self, has_parameters: bool, workers: int) -> None:
        """Start with parameters and enough workers (live or done)."""
        if not self.started and self.finished_because is None and has_parameters and workers >= self.wanted_workers:
            self.started = True
            self._changed()

    def go_on(self, *, in_strict_order: bool) -> None:
        """Mark the run as one that had begun before this process started, so that `min_workers` has had its effect.

        With `in_strict_order` the run still waits for `min_workers`, until `stop_expecting`: the order of the commits,
        and so the result, would otherwise depend on which worker is back first.
        """
        self._expected = self.min_workers
        if not in_strict_order:
            self.wanted_workers = 1

    def stop_expecting(self) -> None:
        """End the time in which workers of a run that had begun are waited for."""
        if self._expected:
            self._expected = 0
            self.wanted_workers = 1

    def check_limit(self, steps_per_epoch: int) -> None:
        """Raise MALFORMED if its epochs have an unknown length."""
        if self.budget.epochs and self.budget.limit_of(steps_per_epoch) is None:
            raise RefusedError(
                Reason.MALFORMED,
                "the budget is in epochs: give ParameterServer steps_per_epoch=len(loader) "
                "(JoinRequest.steps_per_epoch), or the server --steps or --commits instead of --epochs",
            )

    def count(self, worker: Worker, *, takes_part: bool) -> None:
        """Include or exclude the worker in the run's length; one that has finished stays in its progress."""
        if worker.takes_part != takes_part:
            worker.takes_part = takes_part
            self._left += worker.left if takes_part else -worker.left
        counts = takes_part or worker.has_finished
        if worker.counts != counts:
            worker.counts = counts
            self._counted += 1 if counts else -1

    def check_open(self, worker: Worker) -> None:
        """Raise RUN_FINISHED if the worker cannot commit."""
        if self.finished_because is not None:
            raise RefusedError(Reason.RUN_FINISHED, f"the run is finished ({self.finished_because}): leave, and exit 0")
        if worker.done or (worker.limit is not None and worker.commits + worker.reserved >= worker.limit):
            raise RefusedError(
                Reason.RUN_FINISHED,
                f"worker {worker.name} has spent its budget of {worker.limit} commits: leave, and exit 0",
            )
        if self.budget.commits and self.all_reserved:
            raise RefusedError(
                Reason.RUN_FINISHED, f"the run's budget of {self.budget.commits} commits is spent: leave, and exit 0"
            )

    @property
    def all_reserved(self) -> bool:
        """Whether the run has a budget of commits, and applied and reserved ones use it up."""
        return 0 < self.budget.commits <= self.commits + self.reserved

    def reserve(self, worker: Worker) -> None:
        """Reserve a commit. Raises RUN_FINISHED."""
        self.check_open(worker)
        self.reserved += 1
        worker.reserved += 1

    def release(self, worker: Worker) -> None:
        """Return a reservation."""
        self.reserved -= 1
        worker.reserved -= 1

    def applied(self, worker: Worker) -> None:
        """Count a reserved commit."""
        self.release(worker)
        self.commits += 1
        self._advance(worker)
        if worker.takes_part and worker.left:
            self._left -= 1
        worker.commits += 1
        if worker.limit is not None and worker.commits >= worker.limit:
            worker.done = True
            self.count(worker, takes_part=worker.takes_part)
        if self.budget.commits and self.commits >= self.budget.commits:
            self.finish(f"{self.commits} commits")

    def _advance(self, worker: Worker) -> None:
        """Move the progress by an applied commit of this worker."""
        workers = self._counted + (not worker.counts)  # it may have gone since it sent the commit
        most = self.progress + (1 + ROUNDING) / workers
        self.progress = max(self.progress, min(most, self.commits / workers))

    def consider_finish(self, live_workers: Iterable[Worker], anyone_done: bool, workers: int) -> None:
        """Finish if a worker is done, every live one is, and no other is expected; `workers` as in `consider_start`."""
        if not self.started or self.finished_because is not None or workers < self._expected:
            return
        if anyone_done and all(worker.done for worker in live_workers):
            self.finish("every worker has spent its budget")

    def finish(self, because: str, *, resumable: bool = False) -> None:
        """Finish the run. Idempotent.

        `resumable`: the budget is not spent, and a server that resumes the run from its checkpoint trains on.
        """
        if self.finished_because is None:
            self.finished_because = because
            self._may_go_on = resumable
            self._changed()

    @property
    def finally_finished_because(self) -> str | None:
        """Why the run is finished for good, for checkpoints and log; None: a server that resumes it trains on."""
        return None if self._may_go_on else self.finished_because

    def _changed(self) -> None:
        for listener in list(self.on_change):
            listener()
