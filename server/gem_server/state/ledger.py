"""The ledger: which commit of each session was applied last, and what it was told. It makes commits exactly-once.

Knows nothing of sessions being alive: an entry outlives its session, and is saved in checkpoints, because the retry of
a commit may come after either has gone. Not thread-safe; the event loop's thread only.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from gem_core import Statistics
from gem_server.state.central_variable import Version
from gem_server.state.run import RunState


class Content(NamedTuple):
    """What makes two commits of one sequence the same: wire type (its number), payload bytes, CRC32C."""

    wire_type: int
    byte_count: int
    crc32c: int


class Verdict(NamedTuple):
    """The server's answer to an applied commit."""

    sequence: int
    version: Version
    staleness: int
    statistics: Statistics
    run_state: RunState
    next_eta: float
    duplicate: bool = False


@dataclass(slots=True)
class Entry:
    """One session's line: written by the applying task alone."""

    worker_name: str
    last_applied: int = 0
    content: Content | None = None
    verdict: Verdict | None = None


@dataclass(slots=True)
class Ledger:
    """Entries by session id, the oldest dropped beyond `capacity` unless they are in use."""

    capacity: int
    entries: OrderedDict[bytes, Entry] = field(default_factory=OrderedDict)

    def open(self, session_id: bytes, worker_name: str, in_use: set[bytes]) -> Entry:
        """The session's entry, made if there is none. Entries of `in_use` sessions are never dropped."""
        entry = self.entries.get(session_id)
        if entry is None:
            entry = self.entries[session_id] = Entry(worker_name)
            self._drop_oldest(in_use | {session_id})
        self.entries.move_to_end(session_id)
        return entry

    def find(self, session_id: bytes) -> Entry | None:
        """The session's entry, if it is known."""
        return self.entries.get(session_id)

    def _drop_oldest(self, in_use: set[bytes]) -> None:
        surplus = len(self.entries) - self.capacity
        for session_id in list(self.entries) if surplus > 0 else ():
            if surplus <= 0:
                return
            if session_id not in in_use:
                del self.entries[session_id]
                surplus -= 1


def record(entry: Entry, content: Content, verdict: Verdict) -> None:
    """Note that a commit was applied. The sequence must be the next one; anything else is our bug."""
    if verdict.sequence != entry.last_applied + 1:
        raise AssertionError(f"sequence {verdict.sequence} applied after {entry.last_applied}")
    entry.last_applied = verdict.sequence
    entry.content = content
    entry.verdict = verdict
