"""Curves of a run: what happened in each of some hundred intervals, which are as long as the run makes them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from gem_core import Statistics

FIRST_INTERVAL_SECONDS = 1.0
MAX_INTERVALS = 480  # a picture has hardly more columns


@dataclass(slots=True)
class Interval:
    """Sums over the commits of an interval, and what was so at its end.

    `begins` and `ends` are seconds since training began in this process; `losses` counts the commits that brought one.
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

    def add(
        self,
        statistics: Sequence[Statistics],
        staleness: Sequence[int],
        waits: Sequence[float],
        losses: Sequence[float],
    ) -> None:
        """So many commits were applied, one at least; `losses` of those that brought one."""
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

    def followed_by(self, later: "Interval") -> "Interval":
        """Both as one: sums add up, the largest stays, and what was so at the end is that of `later`."""
        whole = Interval(begins=self.begins, staleness_max=max(self.staleness_max, later.staleness_max))
        whole.queued = max(self.queued, later.queued)
        for name in _AT_THE_END:
            setattr(whole, name, getattr(later, name))
        for name in _SUMS:
            setattr(whole, name, getattr(self, name) + getattr(later, name))
        return whole


_AT_THE_END = ("ends", "clock", "jain_index", "workers", "memory")
_SUMS = tuple(
    one.name for one in fields(Interval) if one.name not in (*_AT_THE_END, "begins", "staleness_max", "queued")
)


class History:
    """The intervals of a run, oldest first; when there are `limit` of them, each two become one.

    An interval without a commit is kept too: that nothing happened is worth seeing.
    """

    def __init__(self, limit: int = MAX_INTERVALS) -> None:
        if limit < 2 or limit % 2:
            raise ValueError("the limit must be even, and 2 or more")
        self._limit = limit
        self.intervals: list[Interval] = []
        self.seconds = FIRST_INTERVAL_SECONDS
        self.joins = 0  # how often pairs became one
        self.current = Interval()

    def is_over(self, run_seconds: float) -> bool:
        """Whether it is time to close the interval."""
        return run_seconds - self.current.begins >= self.seconds

    def close(self, run_seconds: float, measure: Callable[[Interval], None]) -> None:
        """End the interval, and begin the next one; `measure` writes into it what is so at its end."""
        current = self.current
        current.ends = run_seconds
        measure(current)
        self.intervals.append(current)
        self.current = Interval(begins=run_seconds)
        if len(self.intervals) >= self._limit:
            pairs = zip(self.intervals[::2], self.intervals[1::2], strict=True)
            self.intervals = [earlier.followed_by(later) for earlier, later in pairs]
            self.seconds *= 2
            self.joins += 1
