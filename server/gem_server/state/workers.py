"""Workers by name: rank, commits, and what is remembered to show. A worker outlives its sessions.

Bounded: names that have no live session are forgotten, the longest gone first, beyond a capacity. The event loop's
thread only.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum

from gem_core import Statistics

RATE_WINDOW_SECONDS = 10


class WorkerState(Enum):
    """What became of a worker's newest session."""

    JOINED = "joined"
    TRAINING = "training"
    FINISHED = "finished"
    LEFT = "left"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"


@dataclass(slots=True)
class RateMeter:
    """Events a second over the last ten whole seconds, in constant memory."""

    buckets: list[int] = field(default_factory=lambda: [0] * RATE_WINDOW_SECONDS)
    second: int = 0
    first: float | None = None

    def add(self, now: float) -> None:
        """Count one event."""
        if self.first is None:
            self.first = now
            self.second = int(now)
        self._advance(now)
        self.buckets[self.second % RATE_WINDOW_SECONDS] += 1

    def rate(self, now: float) -> float:
        """Events a second, over the window, or since the first event (which only starts the count) if that is later."""
        if self.first is None or now <= self.first:
            return 0.0
        self._advance(now)
        window = RATE_WINDOW_SECONDS - 1 + now % 1
        if now - self.first < window:
            return (sum(self.buckets) - 1) / (now - self.first)
        return sum(self.buckets) / window

    def _advance(self, now: float) -> None:
        second = int(now)
        for passed in range(self.second + 1, min(second, self.second + RATE_WINDOW_SECONDS) + 1):
            self.buckets[passed % RATE_WINDOW_SECONDS] = 0
        self.second = max(self.second, second)


@dataclass(slots=True)
class Telemetry:
    """What one worker's commits did; written by the applying task and the service."""

    rate: RateMeter = field(default_factory=RateMeter)
    refused: int = 0
    duplicates: int = 0
    staleness_last: int = 0
    staleness_sum: int = 0
    statistics: Statistics | None = None
    loss: float | None = None
    samples: int = 0
    wait_sum: float = 0.0
    wait_max: float = 0.0
    measured: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0


@dataclass(slots=True)
class Worker:
    """One worker, by name."""

    name: str
    rank: int
    host_id: str = ""
    host_rank: int = 0
    agent: str = ""
    device: str = ""
    state: WorkerState = WorkerState.JOINED
    sessions: int = 0
    commits: int = 0
    reserved: int = 0
    limit: int | None = None
    done: bool = False
    last_call: float = 0.0
    telemetry: Telemetry = field(default_factory=Telemetry)


class Workers:
    """All workers the run has seen, in the order of their last joining."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._by_name: OrderedDict[str, Worker] = OrderedDict()
        self._next_rank = 0

    def enlist(self, name: str, live: set[str]) -> Worker:
        """The worker of this name, with the rank it always had, or the next one."""
        worker = self._by_name.get(name)
        if worker is None:
            worker = self._by_name[name] = Worker(name, self._next_rank)
            self._next_rank += 1
            self._forget_longest_gone(live | {name})
        self._by_name.move_to_end(name)
        return worker

    def restore(self, worker: Worker) -> None:
        """Take a worker from a checkpoint."""
        self._by_name[worker.name] = worker
        self._next_rank = max(self._next_rank, worker.rank + 1)

    def get(self, name: str) -> Worker | None:
        """The worker of this name."""
        return self._by_name.get(name)

    def by_rank(self) -> list[Worker]:
        """All of them, by rank."""
        return sorted(self._by_name.values(), key=lambda worker: worker.rank)

    def anyone_done(self) -> bool:
        """Whether some worker has spent its budget."""
        return any(worker.done for worker in self._by_name.values())

    def _forget_longest_gone(self, live: set[str]) -> None:
        surplus = len(self._by_name) - self.capacity
        for name in list(self._by_name) if surplus > 0 else ():
            if surplus <= 0:
                return
            if name not in live:
                del self._by_name[name]
                surplus -= 1
