"""Workers by name, across sessions."""

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum

from gem_core import WireType
from gem_server.telemetry.recent_commits import RecentCommits
from gem_server.telemetry.worker_telemetry import WorkerTelemetry


class WorkerState(Enum):
    """State of a worker's newest session."""

    JOINED = "joined"
    TRAINING = "training"
    FINISHED = "finished"
    LEFT = "left"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"


@dataclass(slots=True)
class Worker:
    """One worker, by name.

    `wire_types`: of deltas and parameters, as the newest Join settled them; None before it. `scaled`: deltas that
    `DeltaBound` scaled down or set to 0 in this process; `scaled_recently`: which of the last ones were too large.
    `quarantined`: its deltas are multiplied by 0.
    """

    name: str
    rank: int
    host_id: str = ""
    host_rank: int = 0
    agent: str = ""
    device: str = ""
    host_name: str = ""
    engine: str = ""
    wire_types: tuple[WireType, WireType] | None = None
    state: WorkerState = WorkerState.JOINED
    sessions: int = 0
    commits: int = 0
    reserved: int = 0
    steps_per_epoch: int = 0
    limit: int | None = None
    done: bool = False
    left_finished: bool = False  # of its own accord, without a budget
    takes_part: bool = False  # set by `Run.count`
    counts: bool = False  # in the run's progress; set by `Run.count`
    last_call: float = 0.0
    scaled: int = 0
    scaled_recently: RecentCommits = field(default_factory=RecentCommits)
    quarantined: bool = False
    telemetry: WorkerTelemetry = field(default_factory=WorkerTelemetry)

    @property
    def has_finished(self) -> bool:
        """Whether it has done its part: it has spent its budget, or left and said so."""
        return self.done or self.left_finished

    @property
    def left(self) -> int:
        """Commits left in its budget; 0: none."""
        return max(0, self.limit - self.commits) if self.limit is not None else 0


class Workers:
    """All workers, by last join; beyond `capacity`, forgets those gone longest."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._by_name: OrderedDict[str, Worker] = OrderedDict()
        self._next_rank = 0

    def enlist(self, name: str, live: set[str]) -> Worker:
        """The worker, with its previous or a new rank."""
        worker = self._by_name.get(name)
        if worker is None:
            worker = self._by_name[name] = Worker(name, self._next_rank)
            self._next_rank += 1
            self._forget_longest_gone(live | {name})
        self._by_name.move_to_end(name)
        return worker

    def restore(self, worker: Worker) -> None:
        """Add a worker from a checkpoint."""
        self._by_name[worker.name] = worker
        self._next_rank = max(self._next_rank, worker.rank + 1)

    def get(self, name: str) -> Worker | None:
        """The worker of this name."""
        return self._by_name.get(name)

    def by_rank(self) -> list[Worker]:
        """All workers by rank."""
        return sorted(self._by_name.values(), key=lambda worker: worker.rank)

    def anyone_done(self) -> bool:
        """Whether any worker is done."""
        return any(worker.done for worker in self._by_name.values())

    def _forget_longest_gone(self, live: set[str]) -> None:
        surplus = len(self._by_name) - self.capacity
        for name in list(self._by_name) if surplus > 0 else ():
            if surplus <= 0:
                return
            if name not in live:
                del self._by_name[name]
                surplus -= 1
