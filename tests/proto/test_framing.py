"""gemps.framing against the generated protobuf code."""

import pytest
from gemps.framing import COMMIT_REQUEST_CHUNK, FramingError, before_chunk, chunk_at_end, count_fields, split_chunk
from gemps.v1 import commit_pb2, layout_pb2, session_pb2, transfer_pb2
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

MAX_U64 = 2**64 - 1


@given(
    sequence=st.integers(0, MAX_U64),
    offset=st.integers(0, MAX_U64),
    data=st.binary(max_size=300),
    footer=st.booleans(),
)
def test_joined_message_is_what_protobuf_would_parse(sequence: int, offset: int, data: bytes, footer: bool) -> None:
    rest = commit_pb2.CommitRequest(header=commit_pb2.CommitHeader(sequence=sequence))
    if footer:
        rest.footer.CopyFrom(transfer_pb2.Footer(byte_count=offset, crc32c=7))
    joined = before_chunk(rest.SerializeToString(), COMMIT_REQUEST_CHUNK, offset, len(data)) + data
    expected = commit_pb2.CommitRequest()
    expected.CopyFrom(rest)
    expected.chunk.CopyFrom(transfer_pb2.Chunk(offset=offset, data=data))
    assert commit_pb2.CommitRequest.FromString(joined) == expected
    assert len(joined) == expected.ByteSize()


@given(offset=st.integers(0, MAX_U64), data=st.binary(max_size=300), header=st.booleans(), footer=st.booleans())
def test_split_finds_what_protobuf_serialised(offset: int, data: bytes, header: bool, footer: bool) -> None:
    message = commit_pb2.CommitRequest(chunk=transfer_pb2.Chunk(offset=offset, data=data))
    if header:
        message.header.sequence = 5
    if footer:
        message.footer.chunk_count = 9
    rest, found_offset, found = split_chunk(message.SerializeToString(), COMMIT_REQUEST_CHUNK)
    assert (found_offset, None if found is None else bytes(found)) == (offset, data)
    message.ClearField("chunk")
    assert commit_pb2.CommitRequest.FromString(rest) == message


@given(offset=st.integers(0, MAX_U64), data=st.binary(max_size=300), footer=st.booleans(), begin=st.integers(0, 400))
def test_a_chunk_at_the_end_is_found_in_the_beginning(offset: int, data: bytes, footer: bool, begin: int) -> None:
    rest = commit_pb2.CommitRequest(footer=transfer_pb2.Footer(chunk_count=9) if footer else None).SerializeToString()
    head = before_chunk(rest, COMMIT_REQUEST_CHUNK, offset, len(data))
    message = memoryview(head + data)
    found = chunk_at_end(message[:begin], len(message), COMMIT_REQUEST_CHUNK)
    assert found == ((rest, offset, len(head)) if data and begin >= len(head) else None)


@settings(max_examples=500)
@given(raw=st.binary(max_size=60), begin=st.integers(0, 60))
def test_of_arbitrary_bytes_no_other_chunk_is_found(raw: bytes, begin: int) -> None:
    found = chunk_at_end(memoryview(raw)[:begin], len(raw), COMMIT_REQUEST_CHUNK)
    if found is not None:
        rest, offset, start = found
        assert split_chunk(raw, COMMIT_REQUEST_CHUNK) == (rest, offset, memoryview(raw)[start:])


def test_message_without_chunk_is_handed_on_whole() -> None:
    raw = commit_pb2.CommitRequest(footer=transfer_pb2.Footer(byte_count=3)).SerializeToString()
    assert split_chunk(raw, COMMIT_REQUEST_CHUNK) == (raw, 0, None)


def test_a_second_chunk_in_one_message_is_refused() -> None:
    raw = commit_pb2.CommitRequest(chunk=transfer_pb2.Chunk(data=b"a")).SerializeToString()
    with pytest.raises(FramingError, match="one chunk"):
        split_chunk(raw + raw, COMMIT_REQUEST_CHUNK)


@settings(max_examples=500)
@given(st.binary(max_size=60))
def test_arbitrary_bytes_never_do_worse_than_a_framing_error(raw: bytes) -> None:
    try:
        rest, offset, data = split_chunk(raw, COMMIT_REQUEST_CHUNK)
    except FramingError:
        return
    try:
        parsed = commit_pb2.CommitRequest.FromString(raw)
    except DecodeError:
        return  # protobuf also looks inside the fields that framing only hands on
    if data is not None:
        assert (parsed.chunk.offset, parsed.chunk.data) == (offset, bytes(data))
    assert commit_pb2.CommitRequest.FromString(rest).HasField("chunk") is False


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_message_cut_short_is_refused(cut: int) -> None:
    raw = commit_pb2.CommitRequest(chunk=transfer_pb2.Chunk(offset=300, data=b"0123456789")).SerializeToString()
    with pytest.raises(FramingError):
        split_chunk(raw[:-cut], COMMIT_REQUEST_CHUNK)


def test_submessages_are_counted_without_parsing_them() -> None:
    layout = layout_pb2.Layout(tensors=[layout_pb2.TensorSpec()] * 1000)
    raw = session_pb2.JoinRequest(session_id=b"0" * 16, layout=layout).SerializeToString()
    assert count_fields(raw, (4, 1), 5000) == 1000
    assert count_fields(raw, (4, 1), 10) == 11
