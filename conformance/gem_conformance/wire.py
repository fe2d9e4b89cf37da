"""gRPC server whose messages are events of one queue.

Streams of raw bytes equal unary calls on the wire.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

__all__ = ["Call", "Event", "Kind", "Refusal", "Wire"]

# Oversized messages must reach the judge.
_RECEIVE_LIMIT = 64 << 20
# Each open call occupies one.
_THREADS = 32
_SERVICES = ("gemps.v1.WorkerService", "gemps.v1.ObserverService")
_DETAILS_KEY = "grpc-status-details-bin"
_REBIND_SECONDS = 10.0


class Kind(Enum):
    """Type of an event."""

    MESSAGE = "a message"
    HALF_CLOSED = "the candidate has sent its last message"
    ENDED = "the call is over: cancelled, or its connection is gone, or the kit ended it"
    EXITED = "the candidate's process has ended"


@dataclass(frozen=True, slots=True)
class Refusal:
    """How a call ends.

    `reason`: empty: no details, like a broken connection. `retry_after`: seconds for RetryInfo.
    """

    code: grpc.StatusCode
    reason: str = ""
    retry_after: float | None = None
    message: str = "the conformance kit refuses this"


# A lost connection.
TORN = Refusal(grpc.StatusCode.UNAVAILABLE, message="the conformance kit broke this call")


class Call:
    """`send` and `end` do not block."""

    def __init__(self, method: str, events: queue.Queue[Event]) -> None:
        self.method = method
        self.is_over = False
        self._events = events
        self._outgoing: queue.Queue[bytes | Refusal | None] = queue.Queue()
        self._may_read = threading.Event()
        self._may_read.set()
        self._allowed = threading.Semaphore(0)

    def send(self, message: bytes) -> None:
        """Queue a message."""
        self._outgoing.put(message)

    def end(self, refusal: Refusal | None = None) -> None:
        """End the call after queued messages."""
        self.is_over = True
        self._outgoing.put(refusal)

    def stop_reading(self) -> None:
        """Stop reading; flow control then blocks the candidate."""
        self._may_read.clear()

    def read_one(self) -> None:
        """Read one message."""
        self._allowed.release()

    def go_on_reading(self) -> None:
        """Resume reading."""
        self._may_read.set()
        self._allowed.release()

    def handle(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Yield outgoing messages, in gRPC's thread."""
        context.add_callback(self._ended)
        threading.Thread(target=self._read, args=(messages,), daemon=True).start()
        while (outgoing := self._outgoing.get()) is not None:
            if isinstance(outgoing, Refusal):
                _abort(context, outgoing)
            else:
                yield outgoing

    def _read(self, messages: Iterator[bytes]) -> None:
        try:
            while True:
                if not self._may_read.is_set():
                    self._allowed.acquire()
                message = next(messages, None)
                if message is None:
                    break
                self._events.put(Event(Kind.MESSAGE, self, message))
        except Exception:  # bare Exception of an ended call
            return
        self._events.put(Event(Kind.HALF_CLOSED, self))

    def _ended(self) -> None:
        self._outgoing.put(None)
        self.go_on_reading()
        self._events.put(Event(Kind.ENDED, self))


@dataclass(frozen=True, slots=True)
class Event:
    """Event; `at`: monotonic seconds; `status`: exit status."""

    kind: Kind
    call: Call | None = None
    message: bytes = b""
    status: int = 0
    at: float = field(default_factory=time.monotonic)


class Wire:
    """Server at `listen` (HOST:PORT; port 0: any, kept over restarts)."""

    def __init__(self, listen: str = "127.0.0.1:0") -> None:
        self.events: queue.Queue[Event] = queue.Queue()
        self._host, _, port = listen.rpartition(":")
        self._port = int(port)
        self._server: grpc.Server | None = None
        self._was_here = False

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"{self._host}:{self._port}"

    @property
    def port(self) -> int:
        """Port, once started."""
        return self._port

    def start(self) -> None:
        """Listen. Raises OSError if the port is taken."""
        server = grpc.server(
            ThreadPoolExecutor(_THREADS),
            handlers=[_Handlers(self.events)],
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", _RECEIVE_LIMIT),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 30_000),
                ("grpc.keepalive_permit_without_calls", 1),
            ],
        )
        until = time.monotonic() + (_REBIND_SECONDS if self._was_here else 0.0)
        while True:
            try:
                self._port = server.add_insecure_port(self.address) or self._port
                break
            except RuntimeError:
                # The port may stay busy briefly.
                if time.monotonic() >= until:
                    raise OSError(f"cannot listen at {self.address}: is another server there?") from None
                time.sleep(0.1)
        server.start()
        self._server, self._was_here = server, True

    def stop(self) -> None:
        """Drop all connections, as if killed."""
        server, self._server = self._server, None
        if server is not None:
            server.stop(0).wait()


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, events: queue.Queue[Event]) -> None:
        self._events = events

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        service, _, method = handler_call_details.method.lstrip("/").partition("/")
        if service == "grpc.health.v1.Health":
            return _stream(_healthy if method == "Check" else _healthy_for_good)
        if service not in _SERVICES:
            return None
        return _stream(lambda messages, context: Call(method, self._events).handle(messages, context))


def _stream(behaviour: Any) -> grpc.RpcMethodHandler[bytes, bytes]:
    return grpc.stream_stream_rpc_method_handler(behaviour, None, None)


def _healthy(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
    next(messages, None)
    yield b"\x08\x01"


def _healthy_for_good(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
    ended = threading.Event()
    context.add_callback(ended.set)
    yield from _healthy(messages, context)
    ended.wait()


def _abort(context: grpc.ServicerContext, refusal: Refusal) -> None:
    if not refusal.reason:
        context.abort(refusal.code, refusal.message)
    status = Status(code=code_pb2.Code.Value(refusal.code.name), message=refusal.message)
    status.details.add().Pack(ErrorInfo(reason=refusal.reason, domain="gemps"))
    if refusal.retry_after is not None:
        delay = Duration()
        delay.FromMicroseconds(int(refusal.retry_after * 1e6))
        status.details.add().Pack(RetryInfo(retry_delay=delay))
    context.set_trailing_metadata(((_DETAILS_KEY, status.SerializeToString()),))
    context.abort(refusal.code, refusal.message)
