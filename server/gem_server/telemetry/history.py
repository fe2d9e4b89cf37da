"""Curves of a run."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

from gem_core import Statistics
from gem_core.median import median
from gem_server.telemetry.worker_telemetry import WorkerTelemetry

FIRST_INTERVAL_SECONDS = 1.0
MAX_INTERVALS = 480


@dataclass(slots=True)
class Interval:
    """Sums over an interval's commits, and gauges at its end.

    `begins`, `ends`: seconds of training. `losses`: commits with a loss. `loss`: the sum of their losses until the
    interval is closed, and then `losses` times the typical loss (`set_typical_loss`).
    """

    begins: float = 0.0
    ends: float = 0.0
    clock: int = 0
    jain_index: float = 1.0
    workers: int = 0
    queued: int = 0
    memory: int = 0
    commits: int = 0
    losses: int = 0
    loss: float = 0.0
    staleness: int = 0
    staleness_max: int = 0
    wait: float = 0.0
    mean_pi: float = 0.0
    blocked: float = 0.0
    clamped: float = 0.0
    proxy_norm: float = 0.0
    drift_norm: float = 0.0
    update_norm: float = 0.0
    local_steps: int = 0

    def record(
        self,
        statistics: Sequence[Statistics],
        staleness: Sequence[int],
        waits: Sequence[float],
        losses: Sequence[float],
        local_steps: Sequence[int],
    ) -> None:
        """Add commits, at least one; `losses` where known."""
        self.commits += len(statistics)
        self.losses += len(losses)
        self.loss += sum(losses)
        self.staleness += sum(staleness)
        self.staleness_max = max(self.staleness_max, *staleness)
        self.wait += sum(waits)
        self.mean_pi += sum([one.mean_pi for one in statistics])
        self.blocked += sum([one.blocked_fraction for one in statistics])
        self.clamped += sum([one.clamped_fraction for one in statistics])
        self.proxy_norm += sum([one.proxy_norm for one in statistics])
        self.drift_norm += sum([one.drift_norm for one in statistics])
        self.update_norm += sum([one.update_norm for one in statistics])
        self.local_steps += sum(local_steps)

    def set_typical_loss(self, workers: Iterable[WorkerTelemetry]) -> None:
        """Replace the mean over commits by the median over workers, and begin the workers' next interval.

        Each of `workers` that had commits in the interval counts with the mean of their losses, each other one with
        its newest loss, so that also in short intervals a single worker's claim does not decide.
        """
        workers = list(workers)
        typical = median(worker.recent_loss for worker in workers if worker.recent_loss is not None)
        if self.losses and typical is not None:
            self.loss = self.losses * typical
        for worker in workers:
            worker.losses, worker.loss_sum = 0, 0.0

    def followed_by(self, later: "Interval") -> "Interval":
        """Merge with the next interval."""
        whole = Interval(begins=self.begins, staleness_max=max(self.staleness_max, later.staleness_max))
        whole.queued = max(self.queued, later.queued)
        for name in _AT_THE_END:
            setattr(whole, name, getattr(later, name))
        for name in _SUMS:
            setattr(whole, name, getattr(self, name) + getattr(later, name))
        return whole


# As `gem_core.shards.combined` wants them.
STATISTICS = ("mean_pi", "blocked", "clamped", "proxy_norm", "drift_norm", "update_norm")
_AT_THE_END = ("ends", "clock", "jain_index", "workers", "memory")
_SUMS = tuple(
    one.name for one in fields(Interval) if one.name not in (*_AT_THE_END, "begins", "staleness_max", "queued")
)


class History:
    """Intervals, oldest first, merged in pairs at `limit`."""

    def __init__(self, limit: int = MAX_INTERVALS) -> None:
        if limit < 2 or limit % 2:
            raise ValueError("the limit must be even, and 2 or more")
        self._limit = limit
        self.intervals: list[Interval] = []
        self.seconds = FIRST_INTERVAL_SECONDS
        self.joins = 0  # number of merges
        self.current = Interval()
        self._closed = Interval()

    @property
    def total(self) -> Interval:
        """All intervals in one."""
        return self._closed.followed_by(self.current)

    def is_over(self, run_seconds: float) -> bool:
        """Whether to close the interval."""
        return run_seconds - self.current.begins >= self.seconds

    def close(self, run_seconds: float, measure: Callable[[Interval], None]) -> None:
        """Begin the next interval; `measure` sets this one's gauges."""
        current = self.current
        current.ends = run_seconds
        self._closed = self.total
        measure(current)
        self.intervals.append(current)
        self.current = Interval(begins=run_seconds)
        if len(self.intervals) >= self._limit:
            pairs = zip(self.intervals[::2], self.intervals[1::2], strict=True)
            self.intervals = [earlier.followed_by(later) for earlier, later in pairs]
            self.seconds *= 2
            self.joins += 1
