"""Rate-limited log of refusals."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

LINE_SECONDS = 60.0
# Clients choose names; excess ones share an entry.
MAX_NAMES = 100
_OTHERS = "others"

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _LoggedCaller:
    at: float
    left_out: int = 0


class RefusalLog:
    """Logs each caller at most once a minute, counting suppressed lines."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._entries: dict[str, _LoggedCaller] = {}

    def log(self, who: str, line: str) -> None:
        """Log a refusal of caller `who`."""
        now = self._clock()
        if who not in self._entries:
            self._forget(now)
            who = who if len(self._entries) < MAX_NAMES else _OTHERS
        before = self._entries.get(who)
        if before is not None and now - before.at < LINE_SECONDS:
            before.left_out += 1
            return
        more = f" ({before.left_out} more since the line before)" if before is not None and before.left_out else ""
        logger.warning("%s%s", line, more, extra={"event": "refused", "caller": who})
        self._entries[who] = _LoggedCaller(now)

    def _forget(self, now: float) -> None:
        self._entries = {who: told for who, told in self._entries.items() if now - told.at < LINE_SECONDS}
