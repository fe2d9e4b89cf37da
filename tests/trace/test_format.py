"""A trace's bytes: what was written is read, what was damaged is noticed, what is torn is left out."""

import pytest

from gem_trace.format import ALIGNMENT, DamageError, Record, encode, read_records

EVENTS = [
    ({"event": "started", "date": "today"}, b""),
    ({"event": "committed", "text": "é" * 40}, bytes(range(256)) * 3),
    ({"event": "left"}, b""),
    ({"event": "committed"}, b"\x01" * 64),
]


def written() -> bytes:
    return b"".join(bytes(piece) for event, payload in EVENTS for piece in encode(event, [memoryview(payload)]))


def read(data: bytearray) -> tuple[list[Record], int | None]:
    """The records, and the offset of what was refused."""
    found = []
    try:
        found.extend(read_records(memoryview(data)))
    except DamageError as error:
        return [], error.offset
    return found, None


def test_records_come_back_as_they_were_written() -> None:
    found = list(read_records(memoryview(written())))
    assert [(record.event, bytes(record.payload)) for record in found] == EVENTS
    assert [record.offset for record in found[1:]] == [record.end for record in found[:-1]]
    assert all(record.offset % ALIGNMENT == 0 for record in found)


def test_payloads_can_be_cut_into_pieces() -> None:
    whole = b"".join(map(bytes, encode({"event": "a"}, [memoryview(b"12345")])))
    assert b"".join(map(bytes, encode({"event": "a"}, [memoryview(b"12"), memoryview(b"345")]))) == whole


def test_a_trace_that_is_cut_anywhere_has_the_records_before_the_cut() -> None:
    data = written()
    ends = [record.end for record in read_records(memoryview(data))]
    for length in range(len(data)):
        found = [record.event for record in read_records(memoryview(data)[:length])]
        assert found == [event for (event, _), end in zip(EVENTS, ends, strict=True) if end <= length]


def test_a_bit_that_flips_anywhere_is_refused_at_its_record_or_ends_the_trace_there() -> None:
    data = written()
    clean = list(read_records(memoryview(data)))
    refused = ended = harmless = 0
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        hit = next(number for number, record in enumerate(clean) if at < record.end)
        found, refused_at = read(damaged)
        if refused_at is not None:
            assert refused_at == clean[hit].offset
            refused += 1
        elif len(found) < len(clean):
            assert hit == len(clean) - 1, "only the last record can be taken for a torn one"
            ended += 1
        else:
            assert [(record.event, bytes(record.payload)) for record in found] == EVENTS, "damage was read"
            harmless += 1  # in what fills up
    assert min(refused, ended, harmless) > 0


@pytest.mark.parametrize("data", [b"", b"GTRC", bytes(500), b"something else" * 100])
def test_what_is_no_trace_has_no_records(data: bytes) -> None:
    assert list(read_records(memoryview(data))) == []
