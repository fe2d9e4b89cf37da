"""Finds out whether monitoring has seen the end of the run, before the server ends."""

from collections.abc import Callable

# Seconds. Prometheus scrapes once a minute by default. Requests that are further apart probably come from a person.
LONGEST_SCRAPE_INTERVAL = 90.0


class Scrapes:
    """Records when monitoring asked for the metrics, in seconds on `clock`.

    Without one more scrape after the end, monitoring could not tell a server that has finished from one that crashed,
    and would not know the last figures.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last: float | None = None
        self._interval: float | None = None

    def start(self) -> float:
        """Return the time of a scrape that begins now, for `answered`."""
        return self._clock()

    def answered(self, started: float) -> None:
        """Record a scrape whose figures are not older than `started`."""
        if self._last is not None:
            self._interval = started - self._last
        self._last = started

    def is_due(self, finished_at: float) -> bool:
        """Whether the next scrape would be the first one after the end of the run, and can still be expected.

        That needs two scrapes before, at most LONGEST_SCRAPE_INTERVAL apart, and is over when twice the time between
        them has passed.
        """
        if self._last is None or self._interval is None or self._last >= finished_at:
            return False
        return self._interval <= LONGEST_SCRAPE_INTERVAL and self._clock() < self._last + 2 * self._interval
