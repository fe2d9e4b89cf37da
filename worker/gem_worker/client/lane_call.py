"""A lane connection, used in the caller's thread (lane.proto).

A signal handler may raise an exception within any method. The caller then closes the call.
"""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import NamedTuple, NoReturn

import grpc
from gemps import lane
from gemps.framing import COMMIT_RESPONSE_CHUNK, Buffer, message_head, parse_fields, split_message
from gemps.lane import Frame, IllegalFrameError, Kind, Lane, Side, State
from gemps.limits import FIRST_MESSAGE_BYTES
from gemps.tls_stream import STEP_BYTES, TlsStream
from gemps.v1 import commit_pb2, lane_pb2
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status

from gem_core.chunking import Assembler
from gem_worker.client import operating_system
from gem_worker.client.commit_call import ReplySink
from gem_worker.client.rpc_status import DETAILS_KEY
from gem_worker.client.send import ChunkMessage

# Seconds to connect, and to get WELCOME. After that, commits go over gRPC.
CONNECT_SECONDS, WELCOME_SECONDS = 2.0, 3.0
# Seconds without any acknowledgement after which the kernel breaks the connection: of data, or of its keepalive probes.
CUT_SECONDS = 3
# Seconds of silence before a ping, and the time-out of its answer, which comes from the server's process.
_PING_AFTER, _PING_TIMEOUT = 60.0, 20.0
# Seconds since the last byte received, for which the peer counts as alive without a ping.
_FRESH = 0.1
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_WAIT_FOR_ALL = getattr(socket, "MSG_WAITALL", 0)
_NO_FIELDS = commit_pb2.CommitResponse()  # of a message that has only a chunk


class _Entry(NamedTuple):
    key: str
    value: bytes


class LaneCallError(grpc.RpcError):
    """End of a call, as a gRPC error."""

    def __init__(self, code: grpc.StatusCode, details: str, status: bytes = b"") -> None:
        super().__init__(f"{code.name}: {details}")
        self._code = code
        self._details = details
        self._trailers = (_Entry(DETAILS_KEY, status),) if status else ()

    def code(self) -> grpc.StatusCode:
        """Status code."""
        return self._code

    def details(self) -> str:
        """Message."""
        return self._details

    def trailing_metadata(self) -> tuple[_Entry, ...]:  # type: ignore[override]
        """Status details."""
        return self._trailers


class LaneRoute(NamedTuple):
    """Address and HELLO of a lane."""

    host: str
    port: int
    hello: lane_pb2.LaneHello


class LaneCall:
    """CommitCall over the lane; `connect` comes first."""

    transport = "lane"

    def __init__(self, route: LaneRoute, tls: ssl.SSLContext | None, server_name: str | None) -> None:
        self._route = route
        self._tls = tls
        self._server_name = server_name or route.host
        self._socket: socket.socket | None = None
        self._stream: TlsStream | None = None  # over the socket, with TLS
        self._lane = Lane(Side.WORKER, FIRST_MESSAGE_BYTES + lane.HEADER_BYTES)
        self._lock = threading.Lock()  # held while reading or writing
        self._cancelled = False
        self.cut_at: float | None = None  # time.monotonic() when the network no longer let it through
        self._is_torn = False  # a frame was partly sent
        self._end: LaneCallError | None = None
        self._last_bytes = 0  # of a small reply's data
        self._sink: Assembler | None = None  # of a large reply that is being received
        self._heard_at = self._sent_at = 0.0
        self._pinged_at: float | None = None

    @property
    def was_refused(self) -> bool:
        """Whether the server ended the call with a status."""
        return self._end is not None and bool(self._end.trailing_metadata())

    def connect(self) -> None:
        """Connect and wait for WELCOME. Raises OSError or grpc.RpcError."""
        address = (self._route.host, self._route.port)
        plain = self._socket = socket.create_connection(address, CONNECT_SECONDS)
        if self._cancelled:
            raise ConnectionAbortedError
        plain.settimeout(WELCOME_SECONDS)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        operating_system.limit_silence(plain, CUT_SECONDS)
        if self._tls is not None:
            scratch = memoryview(bytearray(STEP_BYTES))
            self._stream = TlsStream(plain, self._tls, scratch, server_name=self._server_name)
            self._stream.do_handshake()
        hello = self._route.hello.SerializeToString()
        self._write(self._lane.header(Kind.HELLO, len(hello)) + hello)
        try:
            welcome = lane_pb2.LaneWelcome.FromString(bytes(self._next_frame().body))
        except DecodeError:
            self._fail(grpc.StatusCode.INTERNAL, "what answers does not speak the lane: no LaneWelcome")
        if welcome.incarnation != self._route.hello.incarnation:
            raise LaneCallError(grpc.StatusCode.UNAVAILABLE, "another server accepted the call")
        self._socket.settimeout(None)

    def exchange(self) -> AbstractContextManager[object]:
        """See CommitCall."""
        return self._lock

    def send(self, messages: Iterable[ChunkMessage]) -> None:
        """See CommitCall; within `exchange`."""
        if self._end is not None:
            return
        try:
            for head, data, last in messages:
                size = len(head) + len(data)
                uploads = self._lane.state is State.COMMITTING
                self._write(self._lane.header(Kind.MESSAGE, size) + head, data)
                if uploads and last:
                    self._lane.enter(State.REPLYING)
        except LaneCallError:
            pass  # `receive` raises it

    def receive(self, reply: ReplySink) -> commit_pb2.CommitResponse:
        """See CommitCall; within `exchange`. Raises LaneCallError."""
        frame = self._next_frame()
        while frame.kind == Kind.PONG:
            if self._pinged_at is None:
                self._fail(grpc.StatusCode.INTERNAL, "the server answered a ping that was not sent")
            self._pinged_at = None
            frame = self._next_frame()
        if self._lane.missing:
            sink = self._sink
            rest, start, count = message_head(frame.body, frame.size, COMMIT_RESPONSE_CHUNK)
            if start + count != frame.size:
                self._fail(grpc.StatusCode.INTERNAL, "the server sent fields behind a chunk")
            message = _NO_FIELDS
            if rest:
                message = parse_fields(commit_pb2.CommitResponse, rest)
                reply.receive_fields(message)
            if rest or sink is None:
                sink = self._sink = reply.sink
            sink.begin(count, frame.body[start:])
            while self._lane.missing:
                count = self._read(sink.space, _WAIT_FOR_ALL)
                self._lane.missing -= count
                sink.filled(count)
        else:
            message, data = split_message(
                commit_pb2.CommitResponse, frame.body, COMMIT_RESPONSE_CHUNK, expected=self._last_bytes
            )
            reply.receive_fields(message)
            if data is not None:
                self._last_bytes = len(data)
                reply.sink.add(data)
        if message.HasField("footer"):
            self._lane.enter(State.IDLE)
            self._sink = None
        elif message.HasField("proceed"):
            self._lane.enter(State.COMMITTING)
        self._heard_at = time.monotonic()
        return message

    def is_open(self) -> bool:
        """See CommitCall. Reads pending frames."""
        if self._end is None and time.monotonic() - self._heard_at < _FRESH:
            return not self._cancelled
        if self._socket is not None and self._end is None and self._lock.acquire(blocking=False):
            try:
                with contextlib.suppress(LaneCallError):
                    try:
                        self._read_pending(self._socket)
                    except OSError as error:
                        self._broken(error)
            finally:
                self._lock.release()
        return self._end is None and not self._cancelled

    def cancel(self) -> None:
        """See CommitCall."""
        self._cancelled = True
        connection = self._socket
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """See CommitCall."""
        connection = self._socket
        if connection is None:
            return
        has_lock = self._lock.acquire(timeout=_FRESH)  # the watchdog may be in `look`
        is_usable = self._end is None and not (self._is_torn or self._cancelled)
        if is_usable and Kind.CANCEL in lane.FROM_WORKER[self._lane.state]:
            with contextlib.suppress(OSError):
                connection.settimeout(0)
                (self._stream or connection).sendall(self._lane.header(Kind.CANCEL, 0))
        self._end = self._end or LaneCallError(grpc.StatusCode.CANCELLED, "closed")
        self.cancel()
        connection.close()
        if has_lock:
            self._lock.release()

    def _read_pending(self, connection: socket.socket) -> None:
        now = time.monotonic()
        connection.settimeout(0)
        try:
            while self._next_frame().kind == Kind.PONG:
                self._pinged_at, self._heard_at = None, now
            self._fail(grpc.StatusCode.INTERNAL, "the server sent a message out of turn")
        except BlockingIOError:
            if self._pinged_at is not None and now - self._pinged_at > _PING_TIMEOUT:
                self._fail(grpc.StatusCode.UNAVAILABLE, "a ping was not answered")
            last = max(self._sent_at, self._heard_at)
            if self._pinged_at is None and now - last > _PING_AFTER and self._lane.state is State.IDLE:
                self._pinged_at = now
                self._write(self._lane.header(Kind.PING, 8) + bytes(8))
        finally:
            with contextlib.suppress(OSError):
                connection.settimeout(None)

    def _fail(self, code: grpc.StatusCode, details: str, status: bytes = b"") -> NoReturn:
        if self._end is None:
            self._end = LaneCallError(code, details, status)
        raise self._end

    def _write(self, head: bytes, data: Buffer = b"") -> None:
        connection = self._socket
        assert connection is not None
        self._is_torn = True
        try:
            if self._stream is not None:
                self._stream.sendall(head, data)
            else:
                operating_system.send_buffers(connection, head, data)
        except OSError as error:
            self._hung_up(error)
        self._is_torn = False
        self._sent_at = time.monotonic()

    def _hung_up(self, error: OSError) -> NoReturn:
        with contextlib.suppress(OSError):
            while True:
                self._next_frame()
        self._broken(error)

    def _next_frame(self) -> Frame:
        if self._end is not None:
            raise self._end
        try:
            frame = self._lane.next_frame() if self._lane.has_more else None
            while frame is None:
                frame = self._lane.next_frame(self._read(self._lane.space))
            if frame.kind == Kind.END:
                status = Status.FromString(bytes(frame.body))
                self._fail(_CODES.get(status.code, grpc.StatusCode.UNKNOWN), status.message, bytes(frame.body))
        except (IllegalFrameError, DecodeError) as error:
            self._fail(grpc.StatusCode.INTERNAL, f"what answers does not speak the lane: {error}")
        return frame

    def _read(self, space: memoryview, flags: int = 0) -> int:
        connection = self._socket
        assert connection is not None
        try:
            if self._stream is not None:
                count = self._stream.recv_into(space, wait_all=bool(flags))
            else:
                count = connection.recv_into(space, 0, flags)
        except BlockingIOError:
            raise
        except OSError as error:
            self._broken(error)
        if count == 0:
            self._broken(None)
        return count

    def _broken(self, error: OSError | None) -> NoReturn:
        if self._cancelled:
            self._fail(grpc.StatusCode.CANCELLED, "cancelled")
        # A process that ends resets or closes the connection. All other errors are reports of the network.
        if error is not None and not isinstance(error, ConnectionResetError | BrokenPipeError):
            self.cut_at = time.monotonic()
        self._fail(grpc.StatusCode.UNAVAILABLE, f"the connection broke: {error if error is not None else 'it ended'}")
