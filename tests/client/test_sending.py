"""Large payloads are cut while gRPC takes them, never in advance."""

import pytest
from gem_worker.client.commit_call import RequestFeed
from gem_worker.client.send import Source, chunk_messages, count_chunks
from gemps.framing import split_chunk
from gemps.v1 import commit_pb2, transfer_pb2

from gem_core.checksum import crc32c
from gem_core.payload import PayloadFormat
from gem_core.wire_types import WireType
from tests.client.models import LARGE, LARGE_CHUNK_BYTES, LARGE_CHUNKS, payload


def messages_of(made: list[int]) -> RequestFeed:
    format_ = PayloadFormat(LARGE, WireType.FLOAT32)
    feed = RequestFeed()
    feed.put(
        chunk_messages(
            Source(payload(LARGE, 1.0), format_),
            format_,
            LARGE_CHUNK_BYTES,
            2,
            first=b"",
            last=lambda checksum: commit_pb2.CommitRequest(
                footer=transfer_pb2.Footer(byte_count=7, crc32c=checksum)
            ).SerializeToString(),
            on_message=lambda: made.append(len(made)),
            on_last=lambda: made.append(-1),
        )
    )
    feed.put([(b"ne", b"xt")])
    feed.end()
    return feed


def test_messages_are_made_when_they_are_asked_for() -> None:
    made: list[int] = []
    feed = messages_of(made)
    assert made == []
    for expected in ([0], [0, 1], [0, 1, 2], [0, 1, 2, 3, -1]):
        next(feed)
        assert made == expected
    assert next(feed) == b"next"
    with pytest.raises(StopIteration):
        next(feed)


def test_chunks_join_to_the_payload_and_only_the_last_has_the_footer() -> None:
    format_ = PayloadFormat(LARGE, WireType.FLOAT32)
    assert count_chunks(format_, LARGE_CHUNK_BYTES) == LARGE_CHUNKS
    received = bytearray()
    footers = []
    for message in list(messages_of([]))[:-1]:
        rest, offset, data = split_chunk(message, 2)
        assert data is not None
        assert offset == len(received)
        received += data
        fields = commit_pb2.CommitRequest.FromString(rest)
        footers.append(fields.footer.crc32c if fields.HasField("footer") else None)
    assert received == payload(LARGE, 1.0)
    assert footers == [None, None, None, crc32c(received)]
