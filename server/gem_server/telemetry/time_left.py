"""Estimates how long a run still takes.

A rate over the last seconds is no basis: it falls while workers evaluate, and changes at once when one joins or leaves.
So rates are means over the newer half of the time for which something was observed, and at least over `WINDOW_SECONDS`.
A budget of each worker (steps, epochs) is spent when its slowest worker has spent it, so there each worker counts by
its own rate; then the estimate does not change because another worker leaves.
"""

from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

WINDOW_SECONDS = 30.0
# Before that a rate says nothing.
ENOUGH_SECONDS = 2.0
# A longer one is no evaluation or checkpoint, but a worker that hangs.
PAUSE_SECONDS = 15.0
# Of one track; then every second one is dropped, and further ones are taken half as often.
MAX_SAMPLES = 32


class WorkerProgress(NamedTuple):
    """Progress of one worker: its name, commits, and commits left in its budget."""

    name: str
    commits: int
    left: int


class Track:
    """How a count of commits grew, in constant memory."""

    __slots__ = ("_gap", "_grown_at", "_newest", "_samples")

    def __init__(self) -> None:
        self._samples: list[tuple[float, int]] = []
        self._gap = 0.5
        self._newest, self._grown_at = -1, 0.0

    def observe(self, seconds: float, commits: int) -> None:
        """Note a count; `seconds` ascend."""
        samples = self._samples
        if commits != self._newest:
            self._newest, self._grown_at = commits, seconds
        if not samples or seconds - samples[-1][0] >= self._gap:
            samples.append((seconds, commits))
        if len(samples) > MAX_SAMPLES:
            del samples[1::2]
            self._gap *= 2

    @property
    def seconds(self) -> float:
        """How long the count was observed."""
        return self._samples[-1][0] - self._samples[0][0] if self._samples else 0.0

    def rate(self, seconds: float) -> float | None:
        """Commits a second over the newer half of the time, at least WINDOW_SECONDS; None: unknown, or none came.

        A worker that hangs keeps its rate: a pause of more than PAUSE_SECONDS counts from the first commit after it on.
        """
        if not self._samples:
            return None
        until = min(seconds, self._grown_at + PAUSE_SECONDS)
        begin = until - max(WINDOW_SECONDS, (until - self._samples[0][0]) / 2)
        since, before = next((one for one in reversed(self._samples) if one[0] <= begin), self._samples[0])
        if self._newest == before or until - since < ENOUGH_SECONDS:
            return None
        return (self._newest - before) / (until - since)


class TimeLeft:
    """Estimates the seconds until the budget of a run is spent.

    Attributes:
        seconds: the estimate; None: there is no budget, or it is too early to tell.
    """

    def __init__(self) -> None:
        self.seconds: float | None = None
        self._run = Track()
        self._workers: dict[str, Track] = {}

    def update(self, now: float, commits: int, left: int | None, workers: Iterable[WorkerProgress]) -> None:
        """Estimate again; call about once a second while the run trains.

        Args:
            now: seconds of training.
            commits: applied commits of the run.
            left: commits left in the budget of the whole run; None: it has none.
            workers: workers that have a session, a budget, and some of it left.
        """
        self._run.observe(now, commits)
        estimates = []
        rate = self._run.rate(now)
        if left is not None and rate is not None:
            estimates.append(left / rate)
        if (slowest := self._slowest(now, list(workers))) is not None:
            estimates.append(slowest)
        self.seconds = min(estimates, default=None)

    def _slowest(self, now: float, workers: list[WorkerProgress]) -> float | None:
        self._workers = {one.name: self._workers.get(one.name) or Track() for one in workers}
        rates: dict[str, float] = {}
        settled: list[float] = []
        for worker in workers:
            track = self._workers[worker.name]
            track.observe(now, worker.commits)
            if (rate := track.rate(now)) is not None:
                rates[worker.name] = rate
                if track.seconds >= WINDOW_SECONDS:
                    settled.append(rate)
        usual = median(settled) if settled else None

        def rate_of(worker: WorkerProgress) -> float | None:
            # A worker's first seconds say little, so it counts as the others do until it has been there for a while.
            if usual is not None and self._workers[worker.name].seconds < WINDOW_SECONDS:
                return usual
            return rates.get(worker.name)

        return max((one.left / rate for one in workers if (rate := rate_of(one)) is not None), default=None)
