"""The one long-lived Commit stream, and one commit's exchange of messages on it.

Nothing here repeats anything: a break is raised as Torn, a refusal as ServerRefused, and commit.py decides.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import grpc
from gemps.framing import (
    COMMIT_REQUEST_CHUNK,
    COMMIT_RESPONSE_CHUNK,
    Buffer,
    FramingError,
    before_chunk,
    chunk_at_end,
    parse_small,
    split_chunk,
)
from gemps.v1 import commit_pb2
from google.protobuf.message import DecodeError

from gem_core.checksum import crc32c, word_sum
from gem_core.errors import CoreError
from gem_core.payload import PayloadFormat
from gem_worker.client.channel import Calls
from gem_worker.client.errors import ServerMisbehavedError, Torn
from gem_worker.client.messages import Verdict
from gem_worker.client.receive import ParametersReceiver
from gem_worker.client.rpc_status import failure
from gem_worker.client.send import Message, Source, chunk_messages, count_chunks, payload_footer
from gem_worker.client.shared_memory import SharedMemory, TornParametersError
from gem_worker.client.watchdog import Watchdog, Watched

# commit.proto: payloads up to this go whole, in the header's message, without waiting for proceed.
WHOLE_LIMIT = 64 << 10


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
    """A delta that lies in shared memory. `header` names session, sequence, base, size and perhaps a scale."""

    is_whole = True

    def __init__(
        self, header: commit_pb2.CommitHeader, delta: memoryview, payload: PayloadFormat, shared: SharedMemory
    ) -> None:
        self.sequence = header.sequence
        self.shared = shared
        self._delta = delta
        self._payload = payload
        self._header = header
        self._is_first = True

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
            scale = self._header.scale if self._header.HasField("scale") else None
            self._header.payload_crc32c = word_sum(Source(self._delta, self._payload, scale).whole())
        return self._header


class StreamedCommit:
    """A delta that goes as chunks: the same bytes in every attempt. `header` names sequence, base and size."""

    def __init__(
        self, header: commit_pb2.CommitHeader, delta: Source, payload: PayloadFormat, chunk_bytes: int
    ) -> None:
        self.sequence = header.sequence
        self.is_whole = payload.byte_count <= WHOLE_LIMIT
        self._delta = delta
        self._payload = payload
        self._chunk_bytes = chunk_bytes
        self._header = header
        self._is_first = True

    def question(self) -> bytes:
        """See `Outgoing`."""
        return commit_pb2.CommitRequest(header=self._header_of_repeat()).SerializeToString()

    def first_message(self) -> Message:
        """See `Outgoing`: of a small commit all of it, of a large one the header.

        All attempts but the first carry the CRC in the header; for the first the footer's is enough, which is known
        when the delta has been sent.
        """
        if self.is_whole:
            return self._whole_message()
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
            self._delta,
            self._payload,
            self._chunk_bytes,
            COMMIT_REQUEST_CHUNK,
            first=b"",
            last=last,
            on_message=watched.progress,
            on_last=on_last,
        )

    def _whole_message(self) -> Message:
        delta, header = self._delta.whole(), self._header
        if not header.HasField("payload_crc32c"):
            header.payload_crc32c = crc32c(delta)
        chunks = 1 if delta.nbytes else 0
        footer = payload_footer(self._payload, chunks, header.payload_crc32c)
        fields = commit_pb2.CommitRequest(header=header, footer=footer).SerializeToString()
        return (before_chunk(fields, COMMIT_REQUEST_CHUNK, 0, delta.nbytes), delta) if chunks else (fields,)

    def _header_of_repeat(self) -> commit_pb2.CommitHeader:
        if not self._header.HasField("payload_crc32c"):
            self._header.payload_crc32c = self._delta.crc32c()
        return self._header


class CommitReply:
    """What came back for one commit so far: the verdict, then parameters."""

    def __init__(self, receiver: ParametersReceiver) -> None:
        self.receiver = receiver
        self.verdict: Verdict | None = None


class CommitStream:
    """One stream. After Torn or a refusal it is dead: `cancel` it and open another."""

    def __init__(self, calls: Calls, watchdog: Watchdog) -> None:
        self._watchdog = watchdog
        self._call = calls.open_commit()

    def is_open(self) -> bool:
        """Whether the server still sees it; an open stream keeps the session alive. Any thread may ask."""
        return self._call.look()

    def cancel(self) -> None:
        """End it at once."""
        self._call.close()

    def exchange(self, commit: Outgoing, reply: CommitReply, *, header_only: bool) -> None:
        """Send a commit and receive everything up to the reply's footer.

        `header_only`: the commit is known to be applied, so its header alone brings the stored verdict.
        Raises Torn (`reply` says how far it got), ServerRefused, ServerMisbehavedError.
        """
        with self._call.exchange(), self._watchdog.watch(self._call.cancel) as watched:
            if commit.is_whole and not header_only:
                watched.sequence = commit.sequence
            try:
                self._call.send([(commit.question(),) if header_only else commit.first_message()])
                self._receive(commit, reply, watched)
            except grpc.RpcError as error:
                reason = failure(error)
                if isinstance(reason, Torn) and watched.ended_because is not None:
                    reason = Torn(watched.ended_because)
                raise reason from None
            except (CoreError, FramingError, DecodeError, TornParametersError) as error:
                reply.receiver.reset()
                raise Torn(f"the reply arrived damaged: {error}") from error

    def _receive(self, commit: Outgoing, reply: CommitReply, watched: Watched) -> None:
        may_proceed = True
        place = _Place(reply.receiver)
        while (message := self._call.receive(place)) is not None:
            watched.progress()
            if (placed := place.taken()) is not None:
                fields, offset, data = commit_pb2.CommitResponse.FromString(placed.fields), placed.offset, None
                reply.receiver.add_placed(offset, len(message))
            else:
                fields, offset, data = _take_apart(message)
            if fields.HasField("proceed"):
                if not may_proceed or fields.proceed.sequence != commit.sequence:
                    raise ServerMisbehavedError(f"the server sent an unexpected proceed for {fields.proceed.sequence}")
                may_proceed = False
                watched.waiting = False
                self._call.send(commit.messages_after_proceed(watched))
            if fields.HasField("verdict"):
                if fields.verdict.sequence != commit.sequence:
                    raise ServerMisbehavedError(
                        f"the server sent a verdict on {fields.verdict.sequence} for commit {commit.sequence}"
                    )
                reply.verdict = Verdict.of(fields.verdict)
                watched.waiting = False
            if fields.HasField("parameters"):
                reply.receiver.announce(fields.parameters)
            if data is not None:
                reply.receiver.add(offset, memoryview(data))
            if fields.HasField("footer"):
                reply.receiver.finish(fields.footer)
                return
        raise Torn("the stream ended without a footer")


class _Placed(NamedTuple):
    """A message whose chunk lies where it belongs: its other fields, serialised, and the chunk's offset."""

    fields: bytes
    offset: int


class _Place:
    """Lets chunks of a reply be received where they belong."""

    def __init__(self, receiver: ParametersReceiver) -> None:
        self._receiver = receiver
        self._placed: _Placed | None = None

    def __call__(self, begin: memoryview, size: int) -> tuple[int, memoryview] | None:
        """See gemps.http2.Place."""
        found = chunk_at_end(begin, size, COMMIT_RESPONSE_CHUNK)
        if found is None:
            return None
        fields, offset, start = found
        memory = self._receiver.place(offset, size - start)
        if memory is None:
            return None
        self._placed = _Placed(fields, offset)
        return start, memory

    def taken(self) -> _Placed | None:
        """What is known of the message that has come, if it was placed."""
        placed, self._placed = self._placed, None
        return placed


def _take_apart(message: Buffer) -> tuple[commit_pb2.CommitResponse, int, Buffer | None]:
    """Its fields, and of its chunk the offset and the data."""
    whole = parse_small(commit_pb2.CommitResponse, message)
    if whole is not None:
        return whole, whole.chunk.offset, whole.chunk.data if whole.HasField("chunk") else None
    rest, offset, data = split_chunk(message, COMMIT_RESPONSE_CHUNK)
    return commit_pb2.CommitResponse.FromString(rest), offset, data
