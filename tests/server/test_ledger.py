import pytest
from gem_server.state.ledger import Content, Entry, Ledger, Verdict, record
from gem_server.state.run import RunState
from gem_server.version import Version

from gem_core import Statistics

STATISTICS = Statistics(1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0)


def verdict(sequence: int) -> Verdict:
    return Verdict(sequence, Version(1, sequence + 1), 0, STATISTICS, RunState.TRAINING, 0.05)


def test_only_the_next_sequence_can_be_recorded() -> None:
    entry = Entry("w")
    record(entry, Content(1, 32, 7), verdict(1))
    assert entry.last_applied == 1
    for sequence in (1, 3):
        with pytest.raises(AssertionError):
            record(entry, Content(1, 32, 7), verdict(sequence))
    assert entry.last_applied == 1


def test_entries_beyond_capacity_go_the_oldest_first_but_never_those_in_use() -> None:
    ledger = Ledger(capacity=2)
    for number in range(4):
        ledger.open_entry(bytes([number]), "w", in_use={b"\0"})
    assert list(ledger.entries) == [b"\0", b"\3"]


def test_known_entry_is_found_again() -> None:
    ledger = Ledger(capacity=2)
    entry = ledger.open_entry(b"a", "w", set())
    assert ledger.open_entry(b"a", "w", set()) is entry
    assert ledger.find(b"b") is None
