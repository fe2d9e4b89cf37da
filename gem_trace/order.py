"""Turns of a traced run.

Turn: counted commit, or first pull of a session.
"""

from array import array
from dataclasses import dataclass
from pathlib import Path

from gem_trace.files import map_file
from gem_trace.format import FORMAT, DamageError, Record, read_records


class OrderError(Exception):
    """A file holds no usable order."""


@dataclass(frozen=True, slots=True)
class Order:
    """Turns by worker rank, without the recorded server's restarts.

    Attributes:
        turns: r for a commit of rank r, -1 - r for a first pull.
        first_clock: clock before the first turn.
        workers: highest rank plus 1.
    """

    turns: "array[int]"
    first_clock: int
    commits: int
    workers: int

    def after(self, clock: int) -> int:
        """Index of the turn after `clock`."""
        left = clock - self.first_clock
        for index, turn in enumerate(self.turns):
            if left <= 0:
                return index
            left -= is_commit(turn)
        return len(self.turns)


def read_order(path: Path) -> Order:
    """Read the order; a torn trace ends early.

    Raises OrderError if the file is unusable, misses commits or has none.
    """
    reading = _TurnCollector()
    try:
        for record in read_records(map_file(path), check=False):
            reading.process(record)
    except OSError as error:
        raise OrderError(f"{path} cannot be read: {error.strerror}; choose another file") from error
    except (DamageError, OrderError) as error:
        raise OrderError(f"{path}: {error}; choose another file") from error
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise OrderError(f"{path} is not a trace of gemps ({FORMAT}): {error!r}; choose another file") from error
    if not reading.has_begun:
        raise OrderError(f"{path} is not a trace of gemps ({FORMAT}): choose another file")
    if not reading.commits:
        raise OrderError(f"{path} has no commits, so there is no order to follow: choose another file")
    workers = 1 + max(rank_of(turn) for turn in set(reading.turns))
    return Order(reading.turns, reading.first_clock, reading.commits, workers)


def is_commit(turn: int) -> bool:
    """Whether a turn is a commit."""
    return turn >= 0


def rank_of(turn: int) -> int:
    """Worker's rank."""
    return turn if is_commit(turn) else ~turn


class _TurnCollector:
    def __init__(self) -> None:
        self.turns: array[int] = array("i")
        self.first_clock = 0
        self.commits = 0
        self.has_begun = False
        self._ranks: dict[int, int] = {}

    def process(self, record: Record) -> None:
        event = record.event
        name = event["event"]
        if not self.has_begun and name != "started":
            raise OrderError(f"it begins with {name!r} where a server starts, so it is not a whole trace")
        if name == "started":
            if event["format"] != FORMAT:
                raise OrderError(f"its format is {event['format']}, this version of gemps reads {FORMAT}")
            self.has_begun = True
            self._ranks = {}
        elif name == "parameters":
            self._go_on_at(int(event["clock"]), record.offset)
        elif name == "joined":
            self._ranks[event["session"]] = int(event["rank"])
        elif name == "pulled" and event["reset"]:
            self.turns.append(~self._ranks[event["session"]])
        elif name == "committed":
            if not self.first_clock or int(event["clock"]) != self._clock + 1:
                raise OrderError(f"commits are missing before clock {event['clock']} (offset {record.offset})")
            self.turns.append(self._ranks[event["session"]])
            self.commits += 1

    @property
    def _clock(self) -> int:
        return self.first_clock + self.commits

    def _go_on_at(self, clock: int, offset: int) -> None:
        if not self.first_clock or clock < self.first_clock:
            self.turns, self.first_clock, self.commits = array("i"), clock, 0
        elif clock > self._clock:
            raise OrderError(
                f"commits are missing between clock {self._clock} and {clock}, at which the server came back (offset "
                f"{offset})"
            )
        while self._clock > clock:
            self.commits -= is_commit(self.turns.pop())
