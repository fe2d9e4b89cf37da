"""gemps.framing against the generated protobuf code."""

from collections.abc import Iterator

import pytest
from gemps.framing import (
    COMMIT_REQUEST_CHUNK,
    FramingError,
    chunk_head,
    count_fields,
    message_head,
    parse_fields,
    payload_messages,
    split_chunk,
    split_message,
    tail_space,
)
from gemps.limits import FIELDS_BYTES
from gemps.v1 import commit_pb2, layout_pb2, session_pb2, transfer_pb2
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

MAX_U64 = 2**64 - 1


@given(sequence=st.integers(0, MAX_U64), data=st.binary(min_size=1, max_size=300), footer=st.booleans())
def test_joined_message_is_what_protobuf_would_make(sequence: int, data: bytes, footer: bool) -> None:
    rest = commit_pb2.CommitRequest(header=commit_pb2.CommitHeader(sequence=sequence))
    if footer:
        rest.footer.crc32c = 7
    joined = rest.SerializeToString() + chunk_head(COMMIT_REQUEST_CHUNK, len(data)) + data
    rest.chunk = data
    assert joined == rest.SerializeToString()


@given(data=st.binary(max_size=300), header=st.booleans(), footer=st.booleans())
def test_split_finds_what_protobuf_serialised(data: bytes, header: bool, footer: bool) -> None:
    message = commit_pb2.CommitRequest(chunk=data)
    if header:
        message.header.sequence = 5
    if footer:
        message.footer.crc32c = 9
    rest, found = split_chunk(message.SerializeToString(), COMMIT_REQUEST_CHUNK)
    assert (None if found is None else bytes(found)) == (data or None)
    message.ClearField("chunk")
    assert commit_pb2.CommitRequest.FromString(rest) == message


@given(data=st.binary(max_size=300), behind=st.booleans(), footer=st.booleans(), begin=st.integers(0, 400))
def test_a_chunk_is_found_in_a_messages_beginning(data: bytes, behind: bool, footer: bool, begin: int) -> None:
    """Whether another field stands before it or behind it."""
    rest = commit_pb2.CommitRequest(footer=transfer_pb2.Footer(crc32c=5) if footer else None).SerializeToString()
    head = chunk_head(COMMIT_REQUEST_CHUNK, len(data))
    before = b"" if behind else rest
    message = memoryview(before + head + data + (rest if behind else b""))
    if begin >= len(before + head):
        found = message_head(message[:begin], len(message), COMMIT_REQUEST_CHUNK)
        assert found == (before, len(before + head), len(data))
    else:
        with pytest.raises(FramingError):
            message_head(message[:begin], len(message), COMMIT_REQUEST_CHUNK)


@settings(max_examples=500)
@given(raw=st.binary(max_size=60), begin=st.integers(0, 60))
def test_of_arbitrary_bytes_no_other_chunk_is_found(raw: bytes, begin: int) -> None:
    try:
        rest, start, count = message_head(memoryview(raw)[:begin], len(raw), COMMIT_REQUEST_CHUNK)
        others, data = split_chunk(raw, COMMIT_REQUEST_CHUNK)
    except FramingError:
        return
    assert others == rest + raw[start + count :]
    assert (data or b"") == raw[start : start + count]


def test_fields_behind_a_large_messages_chunk_have_a_limit() -> None:
    assert len(tail_space(1024)) == 1024
    with pytest.raises(FramingError, match="1025 bytes behind the chunk"):
        tail_space(1025)


def test_a_chunk_that_reaches_beyond_its_message_is_refused() -> None:
    raw = commit_pb2.CommitRequest(chunk=bytes(500)).SerializeToString()
    with pytest.raises(FramingError, match="cut short"):
        message_head(memoryview(raw)[:100], len(raw) - 1, COMMIT_REQUEST_CHUNK)


@pytest.mark.parametrize("size", [10, 70_000, 100_000], ids=["small", "small at its border", "large"])
@pytest.mark.parametrize("fields", ["none", "footer", "unknown"])
def test_a_message_is_taken_apart_alike_whatever_its_size(size: int, fields: str) -> None:
    data = bytes(size)
    message = commit_pb2.CommitRequest(chunk=data)
    if fields == "footer":
        message.footer.crc32c = 9
    unknown = b"\x9a\x06\x03abc" if fields == "unknown" else b""
    parsed, found = split_message(commit_pb2.CommitRequest, message.SerializeToString() + unknown, COMMIT_REQUEST_CHUNK)
    assert found == data
    assert parsed.footer == message.footer
    assert not parsed.HasField("header")


def test_a_message_without_a_chunk_is_taken_apart() -> None:
    raw = commit_pb2.CommitRequest(header=commit_pb2.CommitHeader(sequence=5)).SerializeToString()
    parsed, data = split_message(commit_pb2.CommitRequest, raw, COMMIT_REQUEST_CHUNK)
    assert (parsed.header.sequence, data) == (5, None)


@settings(max_examples=500)
@given(st.binary(max_size=60))
def test_taking_arbitrary_bytes_apart_never_does_worse_than_a_framing_error(raw: bytes) -> None:
    try:
        parsed, data = split_message(commit_pb2.CommitRequest, raw, COMMIT_REQUEST_CHUNK)
    except FramingError:
        return
    expected = commit_pb2.CommitRequest.FromString(raw)
    assert expected.chunk == bytes(data or b"")
    assert parsed.header == expected.header


def taken_apart(raw: bytes, expected: int) -> tuple[commit_pb2.CommitRequest, bytes | None] | None:
    """What `split_message` finds, without the chunk that the fields may have; None if it refuses the bytes."""
    try:
        parsed, data = split_message(commit_pb2.CommitRequest, raw, COMMIT_REQUEST_CHUNK, expected=expected)
    except FramingError:
        return None
    parsed.ClearField("chunk")
    return parsed, None if data is None else bytes(data)


def header_of(size: int) -> bytes:
    """Fields of this many bytes."""
    header = commit_pb2.CommitHeader(session_id=bytes(size - 6))  # and two tags, and two lengths of two bytes
    return commit_pb2.CommitRequest(header=header).SerializeToString()


HEADER = commit_pb2.CommitRequest(header=commit_pb2.CommitHeader(sequence=5)).SerializeToString()
CHUNK = commit_pb2.CommitRequest(chunk=b"abc").SerializeToString()


@settings(max_examples=500)
@example(before=b"\x0a\x00\x0a\x00\x1b\x1c", data=b"abc", after=b"", mistaken_by=0)  # a group
@example(before=HEADER * 1_001, data=b"abc", after=b"", mistaken_by=0)
@example(before=header_of(FIELDS_BYTES - 8), data=bytes(10), after=b"", mistaken_by=0)
@example(before=header_of(FIELDS_BYTES - 4), data=bytes(10), after=b"", mistaken_by=0)
@example(before=header_of(FIELDS_BYTES), data=bytes(10), after=b"", mistaken_by=0)
@given(
    before=st.one_of(st.binary(max_size=20), st.lists(st.sampled_from([HEADER, CHUNK, CHUNK[:-1]])).map(b"".join)),
    data=st.binary(min_size=1, max_size=200),
    after=st.sampled_from([b"", b"", HEADER]),
    mistaken_by=st.sampled_from([0, 0, 1, -1]),
)
def test_a_chunk_is_the_same_whether_or_not_its_size_was_expected(
    before: bytes, data: bytes, after: bytes, mistaken_by: int
) -> None:
    raw = before + chunk_head(COMMIT_REQUEST_CHUNK, len(data)) + data + after
    assert taken_apart(raw, len(data) + mistaken_by) == taken_apart(raw, 0)


def test_an_expected_chunk_is_not_copied() -> None:
    raw = bytearray(HEADER + chunk_head(COMMIT_REQUEST_CHUNK, 300) + bytes(300))
    _, data = split_message(commit_pb2.CommitRequest, raw, COMMIT_REQUEST_CHUNK, expected=300)
    raw[-1] = 9
    assert data is not None
    assert data[-1] == 9


@pytest.mark.parametrize("data", [b"", bytes(100_000)], ids=["small", "large"])
@pytest.mark.parametrize("over", [0, 1])
def test_fields_beside_the_chunk_have_a_limit(data: bytes, over: int) -> None:
    message = commit_pb2.CommitRequest(chunk=data if data else None)
    message.header.session_id = b"x" * (FIELDS_BYTES - 6 + over)  # and two tags, and two lengths of two bytes
    if over:
        with pytest.raises(FramingError, match="besides its chunk, more than"):
            split_message(commit_pb2.CommitRequest, message.SerializeToString(), COMMIT_REQUEST_CHUNK)
    else:
        parsed, _ = split_message(commit_pb2.CommitRequest, message.SerializeToString(), COMMIT_REQUEST_CHUNK)
        assert parsed.header == message.header


def test_fields_that_are_no_message_are_refused() -> None:
    with pytest.raises(FramingError, match=r"not a gemps\.v1\.CommitRequest"):
        parse_fields(commit_pb2.CommitRequest, b"\x0a\x05\x0a")


class Pieces:
    """Chunks of these sizes, with the CRC32C that a test can recognise."""

    def __init__(self, sizes: list[int]) -> None:
        self.all = [memoryview(bytes([size]) * size) for size in sizes]
        self.crc32c = 0

    def __iter__(self) -> Iterator[memoryview]:
        for piece in self.all:
            self.crc32c += 100
            yield piece


@given(sizes=st.lists(st.integers(1, 50), max_size=5))
def test_a_payload_becomes_messages_with_the_fields_around_it(sizes: list[int]) -> None:
    pieces, total = Pieces(sizes), sum(sizes)
    first = commit_pb2.CommitRequest(header=commit_pb2.CommitHeader(sequence=1))

    def add_field(message: commit_pb2.CommitRequest) -> None:
        message.header.samples = 9

    messages = list(payload_messages(pieces, COMMIT_REQUEST_CHUNK, total, first, add_field))
    ends = [False] * (len(messages) - 1) + [True]
    assert [last for _, _, last in messages] == ends
    parsed = [commit_pb2.CommitRequest.FromString(head + data) for head, data, _ in messages]
    assert [one.chunk for one in parsed if one.chunk] == pieces.all
    assert len(parsed) == max(1, len(sizes))
    assert [one.header.sequence for one in parsed] == [1] + [0] * (len(parsed) - 1)
    assert [one.header.samples for one in parsed] == [0] * (len(parsed) - 1) + [9]
    assert [one.HasField("footer") for one in parsed] == ends
    footer = transfer_pb2.Footer(crc32c=100 * len(sizes))
    assert parsed[-1].footer == footer


def test_message_without_chunk_is_handed_on_whole() -> None:
    raw = commit_pb2.CommitRequest(footer=transfer_pb2.Footer()).SerializeToString()
    assert split_chunk(raw, COMMIT_REQUEST_CHUNK) == (raw, None)


def test_a_second_chunk_in_one_message_is_refused() -> None:
    raw = commit_pb2.CommitRequest(chunk=b"a").SerializeToString()
    with pytest.raises(FramingError, match="one chunk"):
        split_chunk(raw + raw, COMMIT_REQUEST_CHUNK)


@settings(max_examples=500)
@given(st.binary(max_size=60))
def test_arbitrary_bytes_never_do_worse_than_a_framing_error(raw: bytes) -> None:
    try:
        rest, data = split_chunk(raw, COMMIT_REQUEST_CHUNK)
    except FramingError:
        return
    try:
        parsed = commit_pb2.CommitRequest.FromString(raw)
    except DecodeError:
        return  # protobuf also looks inside the fields that framing only hands on
    if data is not None:
        assert parsed.chunk == bytes(data)
    assert not commit_pb2.CommitRequest.FromString(rest).chunk


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_message_cut_short_is_refused(cut: int) -> None:
    raw = commit_pb2.CommitRequest(chunk=b"0123456789").SerializeToString()
    with pytest.raises(FramingError):
        split_chunk(raw[:-cut], COMMIT_REQUEST_CHUNK)


def test_submessages_are_counted_without_parsing_them() -> None:
    layout = layout_pb2.Layout(tensors=[layout_pb2.TensorSpec()] * 1000)
    raw = session_pb2.JoinRequest(session_id=b"0" * 16, layout=layout).SerializeToString()
    assert count_fields(raw, (4, 1), 5000) == 1000
    assert count_fields(raw, (4, 1), 10) == 11
