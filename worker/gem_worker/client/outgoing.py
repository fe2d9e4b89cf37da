"""One delta on its way to the server, as Commit's messages: in shared memory, in one message, or in chunks.

However often it is sent, it is the same bytes: a repeat that differed would be another delta (commit.proto).
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple, Protocol

from gemps.framing import COMMIT_REQUEST_CHUNK, before_chunk
from gemps.v1 import commit_pb2

from gem_core.checksum import crc32c, word_sum
from gem_core.payload import PayloadFormat
from gem_core.wire_types import WireType
from gem_worker.client.errors import ServerMisbehavedError
from gem_worker.client.messages import Version, to_wire_types
from gem_worker.client.send import Message, SmallSource, Source, chunk_messages, count_chunks, payload_footer
from gem_worker.client.shared_memory import SharedMemory
from gem_worker.client.watchdog import Watched

# commit.proto: payloads up to this go whole, in the header's message, without waiting for proceed.
WHOLE_LIMIT = 64 << 10


class Delta(NamedTuple):
    """What is to be committed, and as what; `scale`: see Client.commit."""

    sequence: int
    base: Version
    payload: memoryview
    loss: float | None
    samples: int
    scale: float | None


class Outgoing(Protocol):
    """One delta on its way, in one attempt or several."""

    @property
    def sequence(self) -> int:
        """The commit's."""

    @property
    def is_whole(self) -> bool:
        """Whether the first message is all that the server needs."""

    def question(self) -> bytes:
        """The header alone, for the stored verdict of a commit that was applied."""

    def first_message(self) -> Message:
        """What an attempt begins with."""

    def messages_after_proceed(self, watched: Watched) -> Iterator[Message]:
        """What follows when the server says proceed."""


class SharedCommit:
    """A delta that lies in shared memory."""

    is_whole = True

    def __init__(self, session_id: bytes, delta: Delta, payload: PayloadFormat, shared: SharedMemory) -> None:
        self.sequence = delta.sequence
        self.shared = shared
        self._delta = delta
        self._payload = payload
        self._header = _header(session_id, payload, WireType.SHARED_MEMORY)
        _describe(self._header, delta)
        if delta.scale is not None:
            self._header.scale = delta.scale
        self._is_first = True
        shared.write(delta.payload)

    def question(self) -> bytes:
        """See `Outgoing`."""
        return commit_pb2.CommitRequest(header=self._header_of_repeat()).SerializeToString()

    def first_message(self) -> Message:
        """See `Outgoing`. All but the first carry the word sum; for the first nobody needs it."""
        header = self._header if self._is_first else self._header_of_repeat()
        self._is_first = False
        message = commit_pb2.CommitRequest(header=header)
        message.header.shared_memory.CopyFrom(self.shared.delta_handle)
        return (message.SerializeToString(),)

    def messages_after_proceed(self, watched: Watched) -> Iterator[Message]:
        """See `Outgoing`."""
        raise ServerMisbehavedError("the server said proceed to a commit that lies in shared memory")

    def _header_of_repeat(self) -> commit_pb2.CommitHeader:
        if not self._header.HasField("payload_crc32c"):
            scale = self._header.scale if self._delta.scale is not None else None
            self._header.payload_crc32c = word_sum(Source(self._delta.payload, self._payload, scale).whole())
        return self._header


class StreamedCommit:
    """A delta that goes as chunks."""

    is_whole = False

    def __init__(self, session_id: bytes, delta: Delta, payload: PayloadFormat, chunk_bytes: int) -> None:
        self.sequence = delta.sequence
        self._source = Source(delta.payload, payload, delta.scale)
        self._payload = payload
        self._chunk_bytes = chunk_bytes
        self._header = _header(session_id, payload, payload.wire_type)
        _describe(self._header, delta)
        self._is_first = True

    def question(self) -> bytes:
        """See `Outgoing`."""
        return commit_pb2.CommitRequest(header=self._header_of_repeat()).SerializeToString()

    def first_message(self) -> Message:
        """See `Outgoing`: the header.

        All attempts but the first carry the CRC in it; for the first the footer's is enough, which is known when the
        delta has been sent.
        """
        header = self._header if self._is_first else self._header_of_repeat()
        self._is_first = False
        return (commit_pb2.CommitRequest(header=header).SerializeToString(),)

    def messages_after_proceed(self, watched: Watched) -> Iterator[Message]:
        """The chunks, the footer with the last; made one at a time, while they are sent."""

        def on_last() -> None:
            watched.sequence = self.sequence
            watched.waiting = True

        def last(checksum: int) -> bytes:
            footer = payload_footer(self._payload, count_chunks(self._payload, self._chunk_bytes), checksum)
            return commit_pb2.CommitRequest(footer=footer).SerializeToString()

        return chunk_messages(
            self._source,
            self._payload,
            self._chunk_bytes,
            COMMIT_REQUEST_CHUNK,
            first=b"",
            last=last,
            on_message=watched.progress,
            on_last=on_last,
        )

    def _header_of_repeat(self) -> commit_pb2.CommitHeader:
        if not self._header.HasField("payload_crc32c"):
            self._header.payload_crc32c = self._source.crc32c()
        return self._header


class WholeCommit(NamedTuple):
    """A small delta: header, chunk and footer in one message, which is made once.

    `fields`: header and footer, serialised; `chunk`: the rest of the message.
    """

    sequence: int
    fields: bytes
    chunk: Message

    @property
    def is_whole(self) -> bool:
        """See `Outgoing`."""
        return True

    def question(self) -> bytes:
        """See `Outgoing`."""
        return self._fields_without("footer")

    def first_message(self) -> Message:
        """See `Outgoing`."""
        return (self.fields, *self.chunk)

    def messages_after_proceed(self, watched: Watched) -> Iterator[Message]:
        """See `Outgoing`: the server did not know the answer to the question."""
        watched.sequence = self.sequence
        watched.waiting = True
        yield (self._fields_without("header"), *self.chunk)

    def _fields_without(self, name: Literal["header", "footer"]) -> bytes:
        fields = commit_pb2.CommitRequest.FromString(self.fields)
        fields.ClearField(name)
        return fields.SerializeToString()


class WholeCommits:
    """Makes the small commits of a session, one after the other.

    What they have in common is made once: for a model of some thousands of parameters making it is most of the work.
    """

    def __init__(self, session_id: bytes, payload: PayloadFormat) -> None:
        self.payload = payload
        self._source = SmallSource(payload)
        count = payload.byte_count
        self._request = commit_pb2.CommitRequest(
            header=_header(session_id, payload, payload.wire_type), footer=payload_footer(payload, min(count, 1), 0)
        )
        self._before_data = before_chunk(b"", COMMIT_REQUEST_CHUNK, 0, count) if count else b""

    def make(self, delta: Delta) -> WholeCommit:
        """The commit of this delta; the one before must be settled, as this one takes its memory."""
        data = self._source.take(delta.payload, delta.scale)
        request = self._request
        _describe(request.header, delta)
        request.header.payload_crc32c = request.footer.crc32c = crc32c(data)
        return WholeCommit(delta.sequence, request.SerializeToString(), (self._before_data, data))


def _header(session_id: bytes, payload: PayloadFormat, wire_type: WireType) -> commit_pb2.CommitHeader:
    """What the headers of all such commits of a session say."""
    (name,) = to_wire_types([wire_type])
    return commit_pb2.CommitHeader(session_id=session_id, byte_count=payload.byte_count, wire_type=name)


def _describe(header: commit_pb2.CommitHeader, delta: Delta) -> None:
    """Write what the header says of this commit, over what it said of another."""
    header.sequence = delta.sequence
    base, version = header.base_version, delta.base
    base.incarnation, base.clock = version.incarnation, version.clock
    header.samples = delta.samples
    if delta.loss is None:
        header.ClearField("loss")
    else:
        header.loss = delta.loss
