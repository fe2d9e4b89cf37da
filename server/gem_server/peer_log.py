"""Log lines that peers cause, in bounded number.

A peer that may call can cause lines: it joins, leaves, is refused, and begins again. Every such line goes through a
`PeerLog`, which keeps three bounds:

- of each caller, some lines a minute of each event: EACH, of refusals one;
- over all callers, REFUSALS refusals a minute, so that many names do not write many lines;
- over all callers, AT_ONCE lines of all other events at once, and then A_MINUTE more each minute. A fleet of a thousand
  workers can join and leave within that.

What is left out is counted. Once a minute one line for each event says how much that was, and what the last of these
lines would have said; `tick` writes it, also if nothing else happens. So the log of a server that nobody but peers
disturbs grows by at most REFUSALS + A_MINUTE lines a minute, and one summary of each event.

Names of callers are the peers' choice: the memory for them is bounded by the lines that were written in a minute. Lines
that peers cannot cause use `logging` directly. Not thread-safe: for the event loop's thread.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

WINDOW_SECONDS = 60.0
REFUSED = "refused"
# Lines of one caller in a window: a worker that is started again by hand stays readable.
EACH, EACH_REFUSED = 3, 1
REFUSALS = 100
# 1 024 sessions, the default of limits.max_sessions, write two lines each.
AT_ONCE, A_MINUTE = 2048, 30

logger = logging.getLogger(__name__)


class PeerLog:
    """Writes lines that peers cause, and counts those beyond its bounds.

    Args:
        clock: seconds, never going back.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._refusals = _Allowance(REFUSALS, REFUSALS, clock())
        self._others = _Allowance(AT_ONCE, A_MINUTE, clock())
        self._window_began = clock()
        self._written: dict[tuple[str, str], int] = {}
        self._left_out: dict[str, _LeftOut] = {}

    def log(
        self,
        event: str,
        who: str,
        line: str,
        *,
        level: int = logging.INFO,
        error: Exception | None = None,
        **fields: object,
    ) -> None:
        """Write a line, or count it.

        Args:
            event: kind of line; one of a fixed number of words.
            who: name or address of the caller.
            line: the text.
            level: as in `logging`.
            error: its traceback follows the line.
            fields: further fields of the line, for programs.
        """
        now = self._clock()
        self._begin_window(now)
        is_refusal = event == REFUSED
        written = self._written.get((event, who), 0)
        allowance = self._refusals if is_refusal else self._others
        if written >= (EACH_REFUSED if is_refusal else EACH) or not allowance.spend_line(now):
            left_out = self._left_out.setdefault(event, _LeftOut())
            left_out.count += 1
            left_out.last = line
            return
        self._written[event, who] = written + 1
        logger.log(level, "%s", line, exc_info=error, extra={"event": event, **fields})

    def refuse(self, who: str, line: str) -> None:
        """Write or count a refusal of the caller `who`."""
        self.log(REFUSED, who, line, level=logging.WARNING, caller=who)

    def tick(self) -> None:
        """Sum up what was left out, once a window. Call it every few seconds."""
        self._begin_window(self._clock())

    def _begin_window(self, now: float) -> None:
        if now - self._window_began < WINDOW_SECONDS:
            return
        for event, left_out in self._left_out.items():
            about = {"event": "left-out", "of": event, "count": left_out.count}
            logger.warning(
                "%d more lines of this kind (%s) were left out; the last: %s",
                left_out.count,
                event,
                left_out.last,
                extra=about,
            )
        self._window_began = now
        self._written.clear()
        self._left_out.clear()


@dataclass(slots=True)
class _LeftOut:
    count: int = 0
    last: str = ""


class _Allowance:
    """A number of lines that may be written at once, which grows back by some in each minute."""

    def __init__(self, at_once: int, a_minute: float, now: float) -> None:
        self._most = at_once
        self._a_second = a_minute / 60
        self._left = float(at_once)
        self._at = now

    def spend_line(self, now: float) -> bool:
        """Spend one line; False if none is left."""
        self._left = min(self._most, self._left + (now - self._at) * self._a_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
