"""Each session's last applied commit, for exactly-once commits.

Entries outlive sessions and are in checkpoints, for late retries.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from gem_core import Statistics
from gem_server.state.run import RunState
from gem_server.version import Version


class Content(NamedTuple):
    """Identifies a repeat: wire type, payload bytes, CRC32C."""

    wire_type: int
    byte_count: int
    crc32c: int


class Verdict(NamedTuple):
    """The reply to an applied commit."""

    sequence: int
    version: Version
    staleness: int
    statistics: Statistics
    run_state: RunState
    next_eta: float
    duplicate: bool = False
    relative_speed: float = 0.0
    progress: float = 0.0
    withheld: bool = False  # the worker is quarantined


@dataclass(slots=True)
class Entry:
    """One session's entry."""

    worker_name: str
    last_applied: int = 0
    content: Content | None = None
    verdict: Verdict | None = None


@dataclass(slots=True)
class Ledger:
    """Entries by session id; beyond `capacity`, drops the oldest."""

    capacity: int
    entries: OrderedDict[bytes, Entry] = field(default_factory=OrderedDict)

    def open_entry(self, session_id: bytes, worker_name: str, in_use: set[bytes]) -> Entry:
        """The session's entry, new if missing. Keeps `in_use` ones."""
        entry = self.entries.get(session_id)
        if entry is None:
            entry = self.entries[session_id] = Entry(worker_name)
            self._drop_oldest(in_use | {session_id})
        self.entries.move_to_end(session_id)
        return entry

    def find(self, session_id: bytes) -> Entry | None:
        """The session's entry, if known."""
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
    """Record an applied commit, the next in sequence."""
    if verdict.sequence != entry.last_applied + 1:
        raise AssertionError(f"sequence {verdict.sequence} applied after {entry.last_applied}")
    entry.last_applied = verdict.sequence
    entry.content = content
    entry.verdict = verdict
