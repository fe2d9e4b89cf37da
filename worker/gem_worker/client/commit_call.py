"""A Commit call: interface and gRPC implementation."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from queue import SimpleQueue
from typing import Protocol

import grpc
from gemps.framing import COMMIT_RESPONSE_CHUNK, split_message
from gemps.v1 import commit_pb2

from gem_core.chunking import Assembler
from gem_worker.client.interrupts import interrupts_wait
from gem_worker.client.send import ChunkMessage


class ReplySink(Protocol):
    """Takes the messages of a reply."""

    @property
    def sink(self) -> Assembler:
        """Assembler for the current chunk."""

    def receive_fields(self, fields: commit_pb2.CommitResponse) -> None:
        """Handle a message's fields, before its chunk."""


class CommitCall(Protocol):
    """Bidirectional call for one thread; only `look` and `cancel` are thread-safe.

    After the call has ended, `send` does nothing, and `receive` reports why it ended.

    Attributes:
        transport: the name of the implementation, as in `Client.transport`.
    """

    transport: str

    def exchange(self) -> AbstractContextManager[object]:
        """Context of `send` and `receive`; close the call if interrupted."""

    def send(self, messages: Iterable[ChunkMessage]) -> None:
        """Send messages, taking one at a time. May return before all are sent."""

    def receive(self, reply: ReplySink) -> commit_pb2.CommitResponse | None:
        """Pass the next message to `reply`, and return its fields, or None at an end with OK. Raises grpc.RpcError."""

    def is_open(self) -> bool:
        """Whether the call is open, without blocking."""

    def cancel(self) -> None:
        """End the call, waking blocked threads."""

    def close(self) -> None:
        """Cancel and release resources."""


class GrpcCall:
    """CommitCall over gRPC."""

    transport = "grpc"

    def __init__(self, method: "grpc.StreamStreamMultiCallable[bytes, bytes]") -> None:
        self._feed = RequestFeed()
        with interrupts_wait():
            self._call = method(self._feed)

    def exchange(self) -> AbstractContextManager[None]:
        """See CommitCall."""
        return interrupts_wait(self._call.cancel)

    def send(self, messages: Iterable[ChunkMessage]) -> None:
        """See CommitCall. gRPC's thread generates the messages."""
        self._feed.put(messages)

    def receive(self, reply: ReplySink) -> commit_pb2.CommitResponse | None:
        """See CommitCall."""
        raw = next(self._call, None)
        if raw is None:
            return None
        message, data = split_message(commit_pb2.CommitResponse, raw, COMMIT_RESPONSE_CHUNK)
        reply.receive_fields(message)
        if data is not None:
            reply.sink.add(data)
        return message

    def is_open(self) -> bool:
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
            self._feed.close()


class RequestFeed:
    """Request iterator for gRPC's sender thread.

    That thread makes the messages, from memory that the next attempt, or the caller, reuses. It may outlive its call
    until it has made one more message, so `close` waits for this.
    """

    def __init__(self) -> None:
        self._entries: SimpleQueue[Iterator[ChunkMessage] | None] = SimpleQueue()
        self._current: Iterator[ChunkMessage] = iter(())
        self._making = threading.Lock()  # held while a message is made
        self._is_closed = False

    def put(self, messages: Iterable[ChunkMessage]) -> None:
        """Append messages."""
        self._entries.put(iter(messages))

    def close(self) -> None:
        """End the stream. After this returns no message is made, and no message that waited is sent."""
        with self._making:
            self._is_closed = True
        self._entries.put(None)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while (message := self._make()) is None:
            entry = self._entries.get()
            if entry is None:
                raise StopIteration
            self._current = entry
        return message

    def _make(self) -> bytes | None:
        """Return the next message of the current entry, None at its end. Raises StopIteration after `close`."""
        with self._making:
            if self._is_closed:
                raise StopIteration
            message = next(self._current, None)
            return b"".join(message[:2]) if message is not None else None
