"""A gRPC server that turns what comes into events of one queue, and decides nothing itself.

gRPC's threads carry bytes; the scenario's thread reads the queue and answers through `Call`. Every method is served as
a stream of raw bytes in both directions, which is the same as a unary call on the wire.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

__all__ = ["Call", "Event", "Kind", "Refusal", "Wire"]

# Messages above the contract's limit must reach the judge, so that the fault has its own name.
_RECEIVE_LIMIT = 64 << 20
# Each open call occupies one thread.
_THREADS = 32
_SERVICES = ("gemps.v1.WorkerService", "gemps.v1.ObserverService")
_DETAILS_KEY = "grpc-status-details-bin"
_REBIND_SECONDS = 10.0


class Kind(Enum):
    """Type of an event."""

    MESSAGE = "a message"
    HALF_CLOSED = "the end of its messages"
    ENDED = "the end of the call"
    EXITED = "the end of the process"
    ILLEGAL = "an illegal frame on the lane"


@dataclass(frozen=True, slots=True)
class Refusal:
    """How the kit ends a call.

    Attributes:
        code: gRPC's status code. OK ends a stream as if it were complete.
        reason: an ErrorReason's name; empty: no ErrorInfo, as after a broken connection.
        retry_after: seconds for RetryInfo; None: none.
        is_final: whether the metadata say `final`.
        metadata: further metadata of ErrorInfo.
        message: the status's text.
    """

    code: grpc.StatusCode
    reason: str = ""
    retry_after: float | None = None
    is_final: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)
    message: str = "the conformance kit ends this call"

    def status(self) -> Status:
        """Return the google.rpc.Status with its details."""
        status = Status(code=code_pb2.Code.Value(self.code.name), message=self.message)
        if self.reason:
            metadata = dict(self.metadata) | ({"final": "true"} if self.is_final else {})
            status.details.add().Pack(ErrorInfo(reason=self.reason, domain="gemps", metadata=metadata))
        if self.retry_after is not None:
            delay = Duration()
            delay.FromMicroseconds(int(self.retry_after * 1e6))
            status.details.add().Pack(RetryInfo(retry_delay=delay))
        return status


@dataclass(frozen=True, slots=True)
class Event:
    """What came. `message`: bytes, or a text about an illegal frame; `status`: a process's; `at`: monotonic seconds."""

    kind: Kind
    call: Call | None = None
    message: bytes = b""
    status: int = 0
    at: float = field(default_factory=time.monotonic)


class Call:
    """A call over gRPC. `send` and `end` do not block."""

    is_lane = False

    def __init__(self, method: str, events: queue.Queue[Event]) -> None:
        self.method = method
        self.is_over = False
        self._events = events
        self._outgoing: queue.Queue[bytes | Refusal | None] = queue.Queue()
        self._may_read = threading.Event()
        self._may_read.set()
        self._allowed = threading.Semaphore(0)

    def send(self, message: bytes) -> None:
        """Send a message after those before it."""
        self._outgoing.put(message)

    def end(self, refusal: Refusal | None = None) -> None:
        """End the call after its messages: with OK, or refused."""
        self.is_over = True
        self._outgoing.put(refusal)

    def stop_reading(self) -> None:
        """Read no further messages; flow control then blocks the candidate."""
        self._may_read.clear()

    def read_one(self) -> None:
        """Read one message although reading has stopped."""
        self._allowed.release()

    def go_on_reading(self) -> None:
        """Read again."""
        self._may_read.set()
        self._allowed.release()

    def handle(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Yield what is to be sent. Runs in gRPC's thread."""
        context.add_callback(self._ended)
        threading.Thread(target=self._read, args=(messages,), daemon=True).start()
        while (outgoing := self._outgoing.get()) is not None:
            if not isinstance(outgoing, Refusal):
                yield outgoing
                continue
            if outgoing.reason:
                context.set_trailing_metadata(((_DETAILS_KEY, outgoing.status().SerializeToString()),))
            context.abort(outgoing.code, outgoing.message)

    def _read(self, messages: Iterator[bytes]) -> None:
        try:
            while True:
                if not self._may_read.is_set():
                    self._allowed.acquire()
                message = next(messages, None)
                if message is None:
                    break
                self._events.put(Event(Kind.MESSAGE, self, message))
        except Exception:  # grpcio raises a bare Exception when the call has ended
            return
        self._events.put(Event(Kind.HALF_CLOSED, self))

    def _ended(self) -> None:
        self._outgoing.put(None)
        self.go_on_reading()
        self._events.put(Event(Kind.ENDED, self))


class Wire:
    """The server at `listen` (HOST:PORT; port 0 takes any, and keeps it over restarts)."""

    def __init__(self, listen: str = "127.0.0.1:0") -> None:
        self.events: queue.Queue[Event] = queue.Queue()
        self.host, _, port = listen.rpartition(":")
        self.port = int(port)
        self._server: grpc.Server | None = None
        self._was_here = False

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"{self.host}:{self.port}"

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
                self.port = server.add_insecure_port(self.address) or self.port
                break
            except RuntimeError:
                # After a restart the port may stay busy for a moment.
                if time.monotonic() >= until:
                    raise OSError(f"cannot listen at {self.address}: is another server there?") from None
                time.sleep(0.1)
        server.start()
        self._server, self._was_here = server, True

    def stop(self) -> None:
        """Drop all connections, as a killed server does."""
        server, self._server = self._server, None
        if server is not None:
            server.stop(0).wait()


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, events: queue.Queue[Event]) -> None:
        self._events = events

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        service, _, method = handler_call_details.method.lstrip("/").partition("/")
        if service not in _SERVICES:
            return None
        return grpc.stream_stream_rpc_method_handler(
            lambda messages, context: Call(method, self._events).handle(messages, context), None, None
        )
