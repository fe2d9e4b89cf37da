"""Workers' relative speed."""

import statistics
from collections.abc import Callable, Iterable

from gem_server.telemetry.worker_telemetry import WorkerTelemetry

NEWEST = 0.2
# In means: bounds the effect of pauses.
LONGEST = 4.0


class Pace:
    """Measures seconds per step."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._median = 0.0
        self._commits_left = 0

    def relative_speed(
        self, seen: WorkerTelemetry, steps: int, asked_at: float, training: Callable[[], Iterable[WorkerTelemetry]]
    ) -> float:
        """Record a commit; return steps per second over the median; 0: unknown.

        Excludes waits for buffer, turn and queue.
        """
        if seen.committed_at is not None:
            seconds = max(0.0, asked_at - seen.committed_at) / steps
            mean = seen.step_seconds
            seen.step_seconds = mean + NEWEST * (min(seconds, LONGEST * mean) - mean) if mean else seconds
        seen.committed_at = self._clock()
        self._commits_left -= 1
        if self._commits_left <= 0:
            live = list(training())
            self._commits_left = len(live)
            known = [one.step_seconds for one in live if one.step_seconds]
            self._median = statistics.median(known) if known else 0.0
        return self._median / seen.step_seconds if seen.step_seconds else 0.0
