"""What a Commit stream needs of a call, and gRPC's own call as one. The other one is lane_call.py."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from queue import SimpleQueue
from typing import Protocol

import grpc
from gemps.framing import COMMIT_RESPONSE_CHUNK, take_apart
from gemps.v1 import commit_pb2

from gem_core.chunking import Assembler
from gem_worker.client.interrupts import interrupts_wait
from gem_worker.client.send import ChunkMessage


class ReplySink(Protocol):
    """Where a reply goes."""

    @property
    def sink(self) -> Assembler:
        """What takes the chunk of the message whose fields came last."""

    def take(self, fields: commit_pb2.CommitResponse) -> None:
        """A message came; its chunk, if it has one, is about to."""


class CommitCall(Protocol):
    """One bidirectional call. It is used by one thread at a time; `look` and `cancel` are for any.

    When the call has ended sending does nothing: `receive` says why.
    """

    def exchange(self) -> AbstractContextManager[object]:
        """Around a series of `send` and `receive`. Who is interrupted within it closes the call."""

    def send(self, messages: Iterable[ChunkMessage]) -> None:
        """Send these messages, and make them as they are sent; it may return before that.

        A message is read before the next one is asked for.
        """

    def receive(self, reply: ReplySink) -> commit_pb2.CommitResponse | None:
        """The fields of the next message, which went into `reply`; None when the call ended with OK.

        Raises grpc.RpcError, and what `reply` raises.
        """

    def look(self) -> bool:
        """Whether the call goes on, as far as can be said without waiting."""

    def cancel(self) -> None:
        """End the call at once; whoever waits for the peer waits no longer."""

    def close(self) -> None:
        """`cancel`, and release what it holds."""


class GrpcCall:
    """A call of gRPC's client."""

    def __init__(self, method: "grpc.StreamStreamMultiCallable[bytes, bytes]") -> None:
        self._feed = RequestFeed()
        with interrupts_wait():
            self._call = method(self._feed)

    def exchange(self) -> AbstractContextManager[None]:
        """See CommitCall."""
        return interrupts_wait(self._call.cancel)

    def send(self, messages: Iterable[ChunkMessage]) -> None:
        """See CommitCall. gRPC's thread makes the messages."""
        self._feed.put(messages)

    def receive(self, reply: ReplySink) -> commit_pb2.CommitResponse | None:
        """See CommitCall."""
        raw = next(self._call, None)
        if raw is None:
            return None
        message, offset, data = take_apart(commit_pb2.CommitResponse, raw, COMMIT_RESPONSE_CHUNK)
        reply.take(message)
        if data is not None:
            reply.sink.add(offset, data)
        return message

    def look(self) -> bool:
        """See CommitCall."""
        with interrupts_wait():
            return self._call.is_active()

    def cancel(self) -> None:
        """See CommitCall."""
        self._call.cancel()

    def close(self) -> None:
        """See CommitCall."""
        with interrupts_wait():
            self._call.cancel()
            self._feed.end()


class RequestFeed:
    """The stream's request iterator: gRPC's sender thread takes from it what the caller's thread puts in.

    gRPC asks for a message only when it has taken the one before, so that a large payload is never in memory twice.
    """

    def __init__(self) -> None:
        self._entries: SimpleQueue[Iterator[ChunkMessage] | None] = SimpleQueue()
        self._current: Iterator[ChunkMessage] = iter(())

    def put(self, messages: Iterable[ChunkMessage]) -> None:
        """Send these after what was put before."""
        self._entries.put(iter(messages))

    def end(self) -> None:
        """Half-close the stream, and release gRPC's thread."""
        self._entries.put(None)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while (message := next(self._current, None)) is None:
            entry = self._entries.get()
            if entry is None:
                raise StopIteration
            self._current = entry
        return b"".join(message[:2])
