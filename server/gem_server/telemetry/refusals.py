"""Counts the calls that were refused within the last minute, by reason."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

WINDOW_SECONDS = 60.0
# Of one reason; more than these are not counted.
MOST_COUNTED = 1000


@dataclass(frozen=True, slots=True)
class Refused:
    """Refusals of one reason within a minute, and what the last one said."""

    count: int
    message: str


@dataclass(slots=True)
class _Seen:
    times: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_COUNTED))
    message: str = ""


class Refusals:
    """Counts refusals. Its size is bounded, because there are few reasons. Only the event loop's thread may use it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds that never decrease."""
        self._clock = clock
        self._by_reason: dict[str, _Seen] = {}

    def count(self, reason: str, message: str) -> None:
        """Count a refusal with this reason, a word, and this message for people."""
        seen = self._by_reason.setdefault(reason, _Seen())
        seen.times.append(self._clock())
        seen.message = message

    def of_last_minute(self) -> dict[str, Refused]:
        """Return the refusals of the last minute, by reason."""
        start = self._clock() - WINDOW_SECONDS
        for seen in self._by_reason.values():
            while seen.times and seen.times[0] <= start:
                seen.times.popleft()
        recent = {reason: seen for reason, seen in self._by_reason.items() if seen.times}
        return {reason: Refused(len(seen.times), seen.message) for reason, seen in recent.items()}
