"""Large payloads are cut while the transport takes them, never in advance."""

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from gem_worker.client.commit_call import RequestFeed
from gem_worker.client.send import ChunkMessage, watched_messages
from gem_worker.client.watchdog import Watched
from gemps.framing import COMMIT_REQUEST_CHUNK, split_chunk
from gemps.v1 import commit_pb2, transfer_pb2

from gem_core.checksum import crc32c
from gem_core.chunking import ScaledSplitter
from gem_core.payload import PayloadFormat
from gem_core.wire_types import WireType
from tests.client.models import LARGE, LARGE_CHUNK_BYTES, LARGE_CHUNKS, payload
from tests.waiting import happens


class Counted(Watched):
    """Counts signs of progress: how often the time of the last one is set."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.waiting = False
        self.count = 0

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "progressed_at" and hasattr(self, "count"):
            self.count += 1


def messages_of(watched: Watched) -> RequestFeed:
    source = ScaledSplitter(PayloadFormat(LARGE, WireType.FLOAT32), LARGE_CHUNK_BYTES).load(payload(LARGE, 1.0))
    feed = RequestFeed()
    feed.put(watched_messages(source, COMMIT_REQUEST_CHUNK, commit_pb2.CommitRequest(), watched, sequence=9))
    feed.put([(b"ne", b"xt", True)])
    return feed


def test_messages_are_made_when_they_are_asked_for() -> None:
    """After the last message the server is the one to answer."""
    watched = Counted()
    feed = messages_of(watched)
    assert watched.count == 0
    for number in range(1, LARGE_CHUNKS + 1):
        assert not watched.waiting
        next(feed)
        assert watched.count == number
    assert (watched.waiting, watched.sequence) == (True, 9)
    assert next(feed) == b"next"
    feed.close()
    with pytest.raises(StopIteration):
        next(feed)


def test_no_message_of_a_closed_call_is_made_any_more() -> None:
    """The memory that it would be made from belongs to the next attempt."""
    watched = Counted()
    feed = messages_of(watched)
    next(feed)
    feed.close()
    with pytest.raises(StopIteration):
        next(feed)
    assert watched.count == 1


def test_closing_a_call_waits_for_the_message_that_its_sender_makes() -> None:
    order: list[str] = []
    begun, may_end = threading.Event(), threading.Event()

    def messages() -> Iterator[ChunkMessage]:
        begun.set()
        may_end.wait()
        order.append("made")
        yield b"", b"", True

    def close() -> None:
        feed.close()
        order.append("closed")

    feed = RequestFeed()
    feed.put(messages())
    with ThreadPoolExecutor(2) as threads:
        making = threads.submit(next, feed)
        begun.wait()
        closing = threads.submit(close)
        happens(lambda: order, patience=0.1)
        may_end.set()
        making.result()
        closing.result()
    assert order == ["made", "closed"]


def test_chunks_join_to_the_payload_and_only_the_last_has_the_footer() -> None:
    received = bytearray()
    footers = []
    for message in itertools.islice(messages_of(Counted()), LARGE_CHUNKS):
        rest, data = split_chunk(message, COMMIT_REQUEST_CHUNK)
        assert data is not None
        received += data
        fields = commit_pb2.CommitRequest.FromString(rest)
        footers.append(fields.footer if fields.HasField("footer") else None)
    assert received == payload(LARGE, 1.0)
    *others, last = footers
    assert others == [None] * (LARGE_CHUNKS - 1)
    assert last == transfer_pb2.Footer(crc32c=crc32c(received))
