"""A lane connection (lane.proto): the transport of a session's commits, and the context of its handler."""

import asyncio
import logging
import select
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final, NoReturn
from urllib.parse import quote

import grpc
from gemps import lane
from gemps.framing import (
    COMMIT_REQUEST_CHUNK,
    Buffer,
    FramingError,
    message_head,
    parse_fields,
    split_message,
    tail_space,
)
from gemps.lane import Frame, IllegalFrameError, Kind, Lane, Side, State
from gemps.limits import HELLO_BYTES, WHOLE_PAYLOAD_BYTES
from gemps.tls_stream import STEP_BYTES, TlsStream
from gemps.v1 import commit_pb2, lane_pb2
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, status_pb2

from gem_core.chunking import Assembler
from gem_core.errors import CoreError
from gem_server.errors import RefusedError
from gem_server.service.grpc_transport import process_message, too_large_first_message
from gem_server.state.sessions import TransportKind

# Time-out of the TLS handshake and HELLO, plus 1 s for a busy event loop.
HELLO_SECONDS = 4.0
# Seconds after which a peer that reads nothing loses its connection.
WRITE_SECONDS = 60.0
# Smallest interval of pings. Half of it is tolerated, because pings may be delayed on their way.
PING_SECONDS = 10.0
# TCP keepalive with gRPC's times.
_DEAD_SECONDS, _SILENT_SECONDS = 20, 60
# Bytes that a connection handles before others get their turn, which takes some milliseconds.
TURN_BYTES = 4 << 20
TURN_FRAMES = 64
# After END, input is read and discarded, because closing with unread input resets the connection and may lose END.
LINGER_BYTES, LINGER_SECONDS = 8 << 20, 1.0

_DROPPED = memoryview(bytearray(64 << 10))
_CIPHERTEXT = memoryview(bytearray(STEP_BYTES))  # shared: each read is copied at once
_WOULD_BLOCK = (BlockingIOError, InterruptedError)

logger = logging.getLogger(__name__)

# Seconds between two checks whether the worker of a connection that is not read is still there.
LOOK_SECONDS = 5.0

Message = tuple[commit_pb2.CommitRequest, Buffer | None]


class LaneConnection:
    """One lane connection. `connection` must be non-blocking. Only the event loop's thread may use this object.

    Before WELCOME a peer costs one small buffer. `on_hello` raises IllegalFrameError. `serve` handles a connection
    after its HELLO, and is cancelled when the peer disconnects.

    A MESSAGE that comes while the worker has to wait stays unread, and so do all frames after it: the reader is removed
    from the event loop until the state changes, and a timer checks whether the worker has hung up.
    """

    kind: Final = TransportKind.LANE

    def __init__(
        self,
        connection: socket.socket,
        tls: ssl.SSLContext | None,
        *,
        on_hello: Callable[["LaneConnection", lane_pb2.LaneHello], None],
        serve: Callable[["LaneConnection"], Awaitable[None]],
        on_illegal: Callable[["LaneConnection", str], None],
        on_end: Callable[["LaneConnection"], None],
    ) -> None:
        self._peer = _address(connection)
        self._socket: Final = connection
        self._tls = None if tls is None else TlsStream(connection, tls, _CIPHERTEXT, server_side=True)
        self._is_secured = self._tls is None
        self._on_hello, self._serve = on_hello, serve
        self._on_illegal, self._on_end = on_illegal, on_end
        self._loop = asyncio.get_running_loop()
        self._lane = Lane(Side.SERVER, HELLO_BYTES + lane.HEADER_BYTES)
        self.session_id = b""
        self._incarnation = 0
        self._authorization = ""
        self.task: asyncio.Task[None] | None = None
        self._is_over = False
        self._is_waiting_for_turn = False
        self._to_drop = 0  # bytes, after END
        self._pinged_at = -PING_SECONDS
        self._timer: asyncio.TimerHandle | None = None
        self._begun: asyncio.Future[Message] = self._loop.create_future()
        self._sink: Assembler | None = None
        self._footer: asyncio.Future[int] | None = None
        self._fields = b""  # before the chunk of the large message in flight
        self._tail = memoryview(b"")  # for the fields behind it
        self._look: asyncio.TimerHandle | None = None  # while nothing is read
        self._unsent: list[memoryview] = []
        self._drained: asyncio.Future[None] | None = None
        self._moved = 0  # bytes since the last yield
        self._expected = 0  # bytes of a small delta; a commit's BUFFERs may vary

    def start(self) -> None:
        """Start reading."""
        with suppress(OSError):
            _keep_alive(self._socket)
        self._limit_time(HELLO_SECONDS)
        self._loop.add_reader(self._socket, self._turn)

    def close(self) -> None:
        """Close the connection, and cancel its handler."""
        if self._is_over:
            return
        self._is_over = True
        self._lane.close()
        self._limit_time(None)
        if self._look is not None:
            self._look.cancel()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._unsent.clear()
        self._sink = None
        self._begun.cancel()
        if self.task is not None:
            self.task.cancel()
        self._socket.close()
        self._on_end(self)

    def peer(self) -> str:
        """The address in gRPC's notation."""
        return self._peer

    def invocation_metadata(self) -> Sequence[tuple[str, str]]:
        """The call's metadata."""
        return [("authorization", self._authorization)] if self._authorization else []

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Sequence[tuple[str, bytes]] = ()
    ) -> NoReturn:
        """End with a status. Raises grpc.aio.AbortError."""
        if self._lane.state is State.HELLO:
            self._on_illegal(self, details)
        encoded = next((value for _, value in trailing_metadata), b"")
        self._end(encoded or _status(code.name, details))
        raise grpc.aio.AbortError

    def welcome(self, parameter_bytes: int, buffer_bytes: int) -> None:
        """Send WELCOME. Deltas have `parameter_bytes` bytes of PARAMETERs and at most `buffer_bytes` of BUFFERs."""
        is_small = parameter_bytes <= WHOLE_PAYLOAD_BYTES
        whole = min(parameter_bytes + buffer_bytes, WHOLE_PAYLOAD_BYTES) if is_small else 0
        self._expected = whole
        self._lane.grow(lane.HEADER_BYTES + lane.BUFFERED_BYTES + whole)
        self._limit_time(None)
        self._put_frame(Kind.WELCOME, lane_pb2.LaneWelcome(incarnation=self._incarnation).SerializeToString())

    async def receive(self) -> Message | None:
        """See CommitTransport."""
        message = await self._begun
        self._begun = self._loop.create_future()
        return message

    async def receive_into(self, sink: Assembler, proceed: bytes) -> int:
        """See CommitTransport."""
        self._footer = self._loop.create_future()
        if proceed:
            self._put_frame(Kind.MESSAGE, proceed)
        self._check()
        self._sink = sink
        self._enter(State.COMMITTING)
        try:
            return await self._footer
        finally:
            self._sink = self._footer = None

    async def write(self, head: bytes, data: Buffer, *, last: bool) -> None:
        """See CommitTransport."""
        if self._is_over:
            raise asyncio.CancelledError
        size = len(head) + len(data)
        self._unsent.append(memoryview(self._lane.header(Kind.MESSAGE, size) + head))
        if data:
            self._unsent.append(memoryview(data))
        self._moved += size
        if last:
            self._enter(State.IDLE)
            self._moved = 0  # the handler waits for the next commit
        self._send()
        if self._unsent:
            self._moved = 0
            await self._drain()
        elif self._moved >= TURN_BYTES:
            self._moved = 0
            await asyncio.sleep(0)

    def _turn(self) -> None:
        if self._is_over or self._is_waiting_for_turn or self._look is not None:
            return
        try:
            if self._to_drop:
                self._drop()
            elif self._is_secured or self._handshake():
                self._receive()
        except lane.LargeFirstMessageError:
            self._commit_fails(too_large_first_message())
        except IllegalFrameError as error:
            self._break(error)
        except (CoreError, FramingError, RefusedError) as error:
            self._upload_failed(error)
        except _WOULD_BLOCK:
            pass
        except OSError:
            self.close()
        except Exception:
            logger.exception("a connection of the lane failed")
            self.close()

    def _handshake(self) -> bool:
        assert self._tls is not None
        try:
            self._tls.do_handshake()
        except _WOULD_BLOCK:
            return False
        except ssl.SSLError as error:
            raise IllegalFrameError(f"no TLS handshake: {error.reason or error}") from None
        self._is_secured = True
        return True

    def _receive(self) -> None:
        frames = taken = 0
        is_drained = False
        frame = self._lane.next_frame() if self._lane.has_more else None
        while True:
            while frame is not None:
                if self._sink is not None and frame.kind == Kind.MESSAGE:
                    self._upload_goes_on(self._sink, frame)
                else:
                    self._on_frame(frame)
                frames += 1
                if self._is_over or self._to_drop:
                    return
                if frames >= TURN_FRAMES:
                    self._wait_for_turn()
                    return
                frame = self._lane.next_frame() if self._lane.has_more else None
            if self._lane.is_blocked:
                self._stop_reading()
                return
            if is_drained:
                return
            if taken >= TURN_BYTES:
                self._wait_for_turn()
                return
            missing = self._lane.missing
            if not missing:
                space = self._lane.space
            elif self._sink is not None:
                space = self._sink.space or self._tail[-missing:]
            else:  # nobody wants a chunk's data once the upload has ended
                space = _DROPPED[:missing]
            count = self._socket.recv_into(space) if self._tls is None else self._tls.recv_into(space, wait_all=True)
            if not count:
                self.close()
                return
            taken += count
            is_drained = count < len(space)
            if not missing:
                frame = self._lane.next_frame(count)
                continue
            self._lane.missing -= count
            if self._sink is not None:
                if self._sink.space:
                    self._sink.filled(count)
                if count == missing:
                    self._large_message_ends(self._sink)

    def _enter(self, state: State) -> None:
        """Change the state. The worker may now send other frames, so frames that stayed unread are read."""
        self._lane.enter(state)
        self._read_on()

    def _stop_reading(self) -> None:
        """Read nothing until `_read_on`. Close the connection if the worker hangs up meanwhile."""
        self._loop.remove_reader(self._socket)
        self._look = self._loop.call_later(LOOK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        if _has_hung_up(self._socket):
            self.close()
        else:
            self._look = self._loop.call_later(LOOK_SECONDS, self._look_again)

    def _read_on(self) -> None:
        if self._look is not None and not self._is_over:
            self._look.cancel()
            self._look = None
            self._loop.add_reader(self._socket, self._turn)
            self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        """Resume in the next turn of the event loop, because the selector does not see data in the buffer."""
        self._is_waiting_for_turn = True
        self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._is_waiting_for_turn = False
        self._turn()

    def _drop(self) -> None:
        count = (self._tls or self._socket).recv_into(_DROPPED)
        self._to_drop -= count
        if not count or self._to_drop <= 0:
            self.close()

    def _on_frame(self, frame: Frame) -> None:
        if frame.kind == Kind.MESSAGE and self._lane.state is State.COMMITTING:
            self._to_drop = LINGER_BYTES  # the handler is about to abort
        elif frame.kind == Kind.MESSAGE:
            self._commit_begins(frame)
        elif frame.kind == Kind.HELLO:
            self._hello(frame)
        elif frame.kind == Kind.PING:
            if (now := monotonic()) - self._pinged_at < PING_SECONDS / 2:
                raise IllegalFrameError(f"pings within {PING_SECONDS / 2:g} s")
            self._pinged_at = now
            self._put_frame(Kind.PONG, bytes(frame.body))
        else:
            self.close()

    def _hello(self, frame: Frame) -> None:
        if self.task is not None:
            raise IllegalFrameError("a second HELLO")
        try:
            hello = lane_pb2.LaneHello.FromString(bytes(frame.body))
        except DecodeError:
            raise IllegalFrameError("a HELLO that is no LaneHello") from None
        self._on_hello(self, hello)
        self.session_id, self._incarnation = hello.session_id, hello.incarnation
        self._authorization = hello.authorization
        self.task = self._loop.create_task(self._run())

    def _commit_begins(self, frame: Frame) -> None:
        if self._begun.cancelled():
            self.close()  # the handler has ended
            return
        try:
            # The chunk's data stays in the buffer, where bytes that come too early would overwrite it.
            message = split_message(commit_pb2.CommitRequest, frame.body, COMMIT_REQUEST_CHUNK, expected=self._expected)
        except FramingError as error:
            self._commit_fails(error)
            return
        if message[1] is not None:
            self._expected = len(message[1])
        self._begun.set_result(message)

    def _commit_fails(self, error: FramingError | RefusedError) -> None:
        """Let the handler refuse the commit whose first message comes next with `error`."""
        self._to_drop = LINGER_BYTES
        if not self._begun.done():
            self._begun.set_exception(error)

    def _upload_goes_on(self, sink: Assembler, frame: Frame) -> None:
        if self._lane.missing:
            self._fields, start, count = message_head(frame.body, frame.size, COMMIT_REQUEST_CHUNK)
            stop = start + count
            self._tail = tail_space(frame.size - stop)
            self._tail[: max(0, len(frame.body) - stop)] = frame.body[stop:]
            sink.begin(count, frame.body[start:stop])
        else:
            received = split_message(commit_pb2.CommitRequest, frame.body, COMMIT_REQUEST_CHUNK)
            self._message_done(process_message(sink, *received))

    def _large_message_ends(self, sink: Assembler) -> None:
        if fields := self._fields + bytes(self._tail):
            message = parse_fields(commit_pb2.CommitRequest, fields)
            if message.chunk:
                raise FramingError("two chunks: send one a message")
            self._message_done(process_message(sink, message, None))

    def _message_done(self, footer: int | None) -> None:
        if footer is not None and self._footer is not None:
            self._lane.enter(State.REPLYING)
            self._sink = None
            if not self._footer.done():
                self._footer.set_result(footer)

    def _upload_failed(self, error: Exception) -> None:
        self._to_drop = LINGER_BYTES
        if self._footer is not None and not self._footer.done():
            self._footer.set_exception(error)

    async def _run(self) -> None:
        try:
            await self._serve(self)
        except (grpc.aio.AbortError, asyncio.CancelledError):
            pass
        except Exception:
            logger.exception("a connection of the lane failed")
        if self._lane.state is not State.CLOSED:
            self.close()

    def _break(self, error: IllegalFrameError) -> None:
        self._on_illegal(self, str(error))
        if self._is_secured:
            is_large = isinstance(error, lane.LargeFrameError)  # as gRPC refuses a large message
            self._end(_status("RESOURCE_EXHAUSTED" if is_large else "INVALID_ARGUMENT", str(error)))
        if self._to_drop and self.task is not None:
            self.task.cancel()
        else:
            self.close()

    def _end(self, status: bytes) -> None:
        """Send END, unless a frame was partly sent. After WELCOME, input is then read and discarded."""
        if self._is_over or self._lane.state is State.CLOSED:
            return
        is_torn = bool(self._unsent) or (self._tls is not None and self._tls.has_unsent)
        is_welcome = self._lane.state is not State.HELLO
        header = self._lane.header(Kind.END, len(status))
        if not is_torn:
            with suppress(OSError):
                (self._tls or self._socket).sendall(header + status)
                self._socket.shutdown(socket.SHUT_WR)
        if is_torn or not is_welcome:
            self.close()
            return
        self._to_drop = LINGER_BYTES
        self._read_on()
        self._limit_time(LINGER_SECONDS)

    def _check(self) -> None:
        if self._is_over:
            raise asyncio.CancelledError

    def _limit_time(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self._loop.call_later(seconds, self.close)

    def _put_frame(self, kind: Kind, body: bytes) -> None:
        self._unsent.append(memoryview(self._lane.header(kind, len(body)) + body))
        self._send()

    def _send(self) -> None:
        unsent = self._unsent
        moved = False
        try:
            while unsent:
                if self._tls is not None:
                    sent = self._tls.put(unsent[0])
                elif len(unsent) > 1:
                    sent = self._socket.sendmsg(unsent)
                else:
                    sent = self._socket.send(unsent[0])
                moved = True
                while sent:
                    first = unsent[0]
                    if sent < len(first):
                        unsent[0] = first[sent:]
                        break
                    sent -= len(first)
                    del unsent[0]
            if self._tls is not None:
                self._tls.flush()
        except _WOULD_BLOCK:
            if self._timer is None or moved:
                self._limit_time(WRITE_SECONDS)
            self._loop.add_writer(self._socket, self._send)
            return
        except OSError:
            self.close()
            return
        if self._timer is not None:
            self._limit_time(None)
            self._loop.remove_writer(self._socket)
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    async def _drain(self) -> None:
        self._check()
        self._drained = self._loop.create_future()
        try:
            await self._drained
        finally:
            self._drained = None


def _has_hung_up(connection: socket.socket) -> bool:
    """Whether the peer has closed the connection, although what it sent before is still unread."""
    poll = select.poll()
    poll.register(connection, getattr(select, "POLLRDHUP", 0))
    return bool(poll.poll(0))


def _status(code: str, message: str) -> bytes:
    encoded: bytes = status_pb2.Status(code=code_pb2.Code.Value(code), message=message).SerializeToString()
    return encoded


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _SILENT_SECONDS),
        ("TCP_KEEPINTVL", _DEAD_SECONDS // 2),
        ("TCP_KEEPCNT", 2),
        ("TCP_USER_TIMEOUT", 1000 * _DEAD_SECONDS),
    ):
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _address(connection: socket.socket) -> str:
    try:
        name: Any = connection.getpeername()
    except OSError:  # disconnected
        return "unknown"
    host, port = name[0].removeprefix("::ffff:"), name[1]  # IPv4-mapped
    return f"ipv6:{quote(f'[{host}]')}:{port}" if ":" in host else f"ipv4:{host}:{port}"
