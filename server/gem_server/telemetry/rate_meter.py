"""Recent rate of events."""

from dataclasses import dataclass, field

RATE_WINDOW_SECONDS = 10


@dataclass(slots=True)
class RateMeter:
    """Events per second over ten seconds."""

    buckets: list[int] = field(default_factory=lambda: [0] * RATE_WINDOW_SECONDS)
    second: int = -1
    first: float | None = None

    def record(self, now: float) -> None:
        """Count one event."""
        if int(now) != self.second:
            if self.first is None:
                self.first, self.second = now, int(now)
            self._advance(now)
        self.buckets[self.second % RATE_WINDOW_SECONDS] += 1

    def rate(self, now: float) -> float:
        """Events per second, in the window or since the first."""
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
