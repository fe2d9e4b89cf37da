"""What the log says of refused callers: not a line for each, or one that tries again and again could fill the disk."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

LINE_SECONDS = 60.0
# Names are the callers' own, so there may be any number: those beyond these, in a minute, share a line.
MAX_NAMES = 100
_OTHERS = "others"

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Told:
    at: float
    left_out: int = 0


class RefusalLog:
    """Logs a caller's first refusal at once, then at most one line a minute, with how many were left out."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._told: dict[str, _Told] = {}

    def tell(self, who: str, line: str) -> None:
        """A call was refused. `who`: by what its caller is known; `line`: what there is to be said of it."""
        now = self._clock()
        if who not in self._told:
            self._forget(now)
            who = who if len(self._told) < MAX_NAMES else _OTHERS
        before = self._told.get(who)
        if before is not None and now - before.at < LINE_SECONDS:
            before.left_out += 1
            return
        more = f" ({before.left_out} more since the line before)" if before is not None and before.left_out else ""
        logger.warning("%s%s", line, more, extra={"event": "refused", "caller": who})
        self._told[who] = _Told(now)

    def _forget(self, now: float) -> None:
        self._told = {who: told for who, told in self._told.items() if now - told.at < LINE_SECONDS}
