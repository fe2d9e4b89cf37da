"""What the log says of callers who were refused at the door: not a line for each, or they could fill the disk."""

import logging
from collections.abc import Callable
from time import monotonic

from gem_server.errors import Refusal

LINE_SECONDS = 10.0

logger = logging.getLogger(__name__)


class RefusedCallers:
    """Logs the first refusal at once, then at most one line every ten seconds, with how many were left out."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._logged_at: float | None = None
        self._left_out = 0

    def note(self, peer: str, refusal: Refusal) -> None:
        """A call was refused."""
        now = self._clock()
        if self._logged_at is not None and now - self._logged_at < LINE_SECONDS:
            self._left_out += 1
            return
        more = f" ({self._left_out} more since the line before)" if self._left_out else ""
        logger.warning("a call from %s was refused: %s%s", peer, refusal.message, more)
        self._logged_at, self._left_out = now, 0
