"""What a process has timed, in a file that another process reads at any moment."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

# 16 MiB, of which the file takes what was written: ten minutes at 1 700 a second.
CAPACITY = 1 << 20


class Recorder:
    """Writes. Row 0: (number of operations that ended, begin of the one under way or 0); then (end, seconds) each."""

    def __init__(self, path: Path | str) -> None:
        self._rows = np.memmap(path, np.float64, "w+", shape=(CAPACITY + 1, 2))
        self._count = 0

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Time one operation; one that raises has taken for ever."""
        began = time.monotonic()
        self._rows[0, 1] = began
        seconds = math.inf
        try:
            yield
            seconds = time.monotonic() - began
        finally:
            self._count += 1
            self._rows[self._count] = (time.monotonic(), seconds)
            self._rows[0] = (self._count, 0.0)


@dataclass(frozen=True)
class Window:
    """The operations of an interval: how many ended a second, and how long they took."""

    rate: float
    p99: float
    longest: float


class Record:
    """Reads what a Recorder writes to the same file."""

    def __init__(self, path: Path | str) -> None:
        self._rows = np.memmap(path, np.float64, "r", shape=(CAPACITY + 1, 2))

    @property
    def count(self) -> int:
        return int(self._rows[0, 0])

    def window(self, begin: float, end: float) -> Window:
        """Between two moments (time.monotonic()); `end` is not in the future.

        An operation that has not ended counts with the time that it has taken so far, but not for the rate.
        """
        ended = np.array(self._rows[1 : self.count + 1])
        inside = ended[(ended[:, 0] >= begin) & (ended[:, 0] < end), 1]
        # The one that was under way at the end: it ended later, or has not ended.
        later = ended[(ended[:, 0] >= end) & (ended[:, 0] - ended[:, 1] < end)]
        under_way = float(self._rows[0, 1])
        waits = [end - (row[0] - row[1]) for row in later if math.isfinite(row[1])]
        waits += [end - under_way] if 0 < under_way < end else []
        seconds = np.concatenate([inside, waits])
        if not len(seconds):
            return Window(0.0, math.inf, math.inf)
        # Without interpolation: between a number and infinity there is none.
        p99 = float(np.quantile(seconds, 0.99, method="higher"))
        return Window(len(inside) / (end - begin), p99, float(seconds.max()))
