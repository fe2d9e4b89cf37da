"""A gRPC server that puts everything it receives into one queue of events, and decides nothing itself.

gRPC's threads only carry bytes. The scenario's thread reads the queue, decides, and answers through `Call`. Every
method is served as a stream of raw bytes in both directions: on the network, a unary call looks the same as a stream
with one message in each direction.
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

__all__ = ["Call", "Event", "EventKind", "GrpcServer", "Refusal"]

# Bytes. Messages above the contract's limit must reach the judge, so that it can report TOO_LARGE; with the contract's
# own limit gRPC would end the call before.
_RECEIVE_LIMIT = 64 << 20
# Each open call occupies one thread. A worker has two or three open at most.
_THREADS = 32
_SERVICES = ("gemps.v1.WorkerService", "gemps.v1.ObserverService")
_DETAILS_KEY = "grpc-status-details-bin"
# After a restart the port may stay busy for a moment.
_REBIND_SECONDS = 10.0


class EventKind(Enum):
    """What happened. The values complete sentences of faults, such as "came the end of the call"."""

    MESSAGE = "a message"
    HALF_CLOSED = "the end of its messages"
    ENDED = "the end of the call"
    EXITED = "the end of the process"
    ILLEGAL = "an illegal frame on the lane"


@dataclass(frozen=True, slots=True)
class Refusal:
    """How the kit ends a call.

    Attributes:
        code: the status code of gRPC. OK ends a stream as if it were complete.
        reason: the name of an ErrorReason. If it is empty there is no ErrorInfo, as after a broken connection.
        retry_after: the delay of RetryInfo in seconds. If it is None there is no RetryInfo.
        is_final: whether the metadata of ErrorInfo has `final` = `true`.
        metadata: further metadata of ErrorInfo.
        message: the text of the status, for people.
    """

    code: grpc.StatusCode
    reason: str = ""
    retry_after: float | None = None
    is_final: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)
    message: str = "the conformance kit ends this call"

    def status(self) -> Status:
        """Return the google.rpc.Status of this refusal, with ErrorInfo and RetryInfo among its details."""
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
    """Something that came from the candidate or happened to it.

    Attributes:
        kind: what happened.
        call: the call to which it belongs; None for the end of the process.
        message: the serialized message; for an illegal frame, its description in UTF-8.
        status: the exit status of the process that ended.
        at: when it came, in seconds of the monotonic clock.
    """

    kind: EventKind
    call: Call | None = None
    message: bytes = b""
    status: int = 0
    at: float = field(default_factory=time.monotonic)


class Call:
    """A call over gRPC.

    Its methods never block, and only the scenario's thread calls them, except `handle`, which runs in a thread of gRPC.

    Attributes:
        method: the name of the method, such as "Commit", without its service.
        is_over: whether the kit has ended the call. Events of such a call are ignored.
        is_lane: whether it is a connection to the lane (`LaneCall`).
    """

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
        """Queue a serialized message, which is sent after those that were queued before."""
        self._outgoing.put(message)

    def end(self, refusal: Refusal | None = None) -> None:
        """End the call once all queued messages are sent: with OK, or with the status of `refusal`."""
        self.is_over = True
        self._outgoing.put(refusal)

    def stop_reading(self) -> None:
        """Take no further messages from gRPC, so that its flow control soon stops the candidate from sending."""
        self._may_read.clear()

    def read_one(self) -> None:
        """Take one more message although reading is stopped."""
        self._allowed.release()

    def resume_reading(self) -> None:
        """Take all messages again, after `stop_reading`."""
        self._may_read.set()
        self._allowed.release()

    def handle(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Yield the messages to be sent until the call ends. Runs in a thread of gRPC, and starts one that reads."""
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
                self._events.put(Event(EventKind.MESSAGE, self, message))
        except Exception:  # grpcio raises a bare Exception once the call has ended
            return
        self._events.put(Event(EventKind.HALF_CLOSED, self))

    def _ended(self) -> None:
        self._outgoing.put(None)
        self.resume_reading()
        self._events.put(Event(EventKind.ENDED, self))


class GrpcServer:
    """A server that can be stopped and started again at the same port.

    Args:
        listen: HOST:PORT. With port 0 the operating system chooses a port at the first start, which later starts keep.

    Attributes:
        events: everything that came, in order.
        host, port: the address.
    """

    def __init__(self, listen: str = "127.0.0.1:0") -> None:
        self.events: queue.Queue[Event] = queue.Queue()
        self.host, _, port = listen.rpartition(":")
        self.port = int(port)
        self._server: grpc.Server | None = None
        self._was_started = False

    @property
    def address(self) -> str:
        """The address as HOST:PORT, which is the value of GEMPS_SERVER."""
        return f"{self.host}:{self.port}"

    def start(self) -> None:
        """Start to accept calls. Raises OSError if another program has the port."""
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
        until = time.monotonic() + (_REBIND_SECONDS if self._was_started else 0.0)
        while True:
            try:
                self.port = server.add_insecure_port(self.address) or self.port
                break
            except RuntimeError:
                if time.monotonic() >= until:
                    raise OSError(f"cannot listen at {self.address}: is another server there?") from None
                time.sleep(0.1)
        server.start()
        self._server, self._was_started = server, True

    def stop(self) -> None:
        """Stop listening and break all open calls, as the end of a killed server does."""
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
