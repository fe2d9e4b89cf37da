"""A connection of the commit port: the server's end of Commit calls, one after the other, without gRPC's library.

It is to a handler what gRPC's ServicerContext is. What differs: a message is read to where it stays, and written from
where it lies. Messages are read only when the handler asks for one, so TCP stops a peer that says more than it is
asked; what else HTTP/2 says between two messages is heard all the time.
"""

import asyncio
import base64
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn
from urllib.parse import quote

import grpc
from gemps import http2
from gemps.framing import SMALL_BYTES, Buffer
from gemps.header_block import write_headers
from gemps.http2 import BadMessageError, Http2, Place, ProtocolError

# What the peer may send before it hears from the reader; TCP stops it before that.
_WINDOW = 1 << 30
_BUFFER = 16 << 10
# After so many bytes of messages others have a turn. One chunk after the other finds its memory in the cache, where the
# one before was: taking turns after each cost the server a twentieth more processor time at 4.2 million parameters.
_TURN = 4 << 20
# After so many receipts of a message's parts, too: else a peer that never ends one would have all turns.
_RECEIPTS = 64
# Frames that wait to be sent, the largest message's among them; a peer that takes none of them, and asks on, is left.
_MOST_FRAMES = 256
# Seconds that a connection may be without a call; and until a peer has taken the end of one.
_WITHOUT_CALL, _ENDING = 10.0, 20.0
# As with gRPC: a peer that does not take anything for so many seconds, or is silent so long and then does not answer.
_DEAD_SECONDS, _SILENT_SECONDS = 20, 60

Serve = Callable[["CommitConnection"], Awaitable[None]]
logger = logging.getLogger(__name__)


class CommitConnection:
    """One connection, from `start` to its end, of which `on_end` is told. The event loop's thread only.

    Args:
        connection: connected, and does not block.
        serve: the handler of its calls. When it returns a call ends with OK; it may `abort`. It is cancelled when the
            peer has gone.
        limit: bytes that a message of the peer may have.
        spare: memory for messages, shared by all connections: who waits for a peer to begin one has none.
        on_end: called once, at the end.
    """

    def __init__(
        self,
        connection: socket.socket,
        serve: Serve,
        limit: int,
        spare: deque[memoryview],
        on_end: Callable[["CommitConnection"], None],
    ) -> None:
        self._socket: Final = connection
        self._serve = serve
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._preface = bytearray()
        self._http2 = Http2(self, limit=limit, window=_WINDOW, buffer_bytes=_BUFFER, spare=spare)
        self._peer = _address(connection)
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        # The call.
        self._task: asyncio.Task[None] | None = None
        self._last_stream = 0
        self._had_call = False  # before this one, whose handler may still be ending
        self._headers: Mapping[str, bytes] = {}
        self._is_half_closed = False
        self._has_begun = False  # to answer
        # Reading.
        self._is_reading = False  # the handler waits for a message
        self._moved = 0  # bytes since others had their turn
        self._has_answered = False  # since it read last
        self._is_taken = False  # it looks at the one that is there
        self._is_listening = False  # to the socket
        self._news: asyncio.Future[None] | None = None
        # Writing: frames, the first of which may be sent in part.
        self._frames: deque[list[memoryview]] = deque()
        self._first_is_torn = False
        self._drained: asyncio.Future[None] | None = None
        self._is_waiting_to_write = False

    def start(self) -> None:
        """Begin to listen to the peer."""
        with suppress(OSError):
            _keep_alive(self._socket)
        self._http2.begin()
        self._say()
        self._listen()
        self._limit_time(_WITHOUT_CALL)

    @property
    def task(self) -> "asyncio.Task[None] | None":
        """The call that runs, if one does."""
        return self._task

    def close(self) -> None:
        """End it at once, and the call on it."""
        if self._is_over:
            return
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._frames.clear()
        self._first_is_torn = False
        if self._task is not None:
            self._task.cancel()
        self._socket.close()
        self._on_end(self)

    # --- for handlers, as gRPC's context

    def peer(self) -> str:
        """Who has called, as gRPC writes it."""
        return self._peer

    def header(self, name: str) -> bytes:
        """A header of the call; empty where there is none."""
        return self._headers.get(name, b"")

    def invocation_metadata(self) -> Sequence[tuple[str, str]]:
        """The call's metadata."""
        return [(name, value.decode("latin-1")) for name, value in self._headers.items() if name[:1] != ":"]

    async def send_initial_metadata(self, metadata: Iterable[tuple[str, bytes]]) -> None:
        """Tell the peer that its call has begun; a second time nothing."""
        self._check()
        if not self._has_begun:
            self._has_begun = True
            block = write_headers(((":status", "200"), ("content-type", "application/grpc"), *metadata))
            self._put_frame(http2.HEADERS, http2.END_HEADERS, block)

    async def read(self, place: Place | None = None) -> Buffer | object:
        """The next message, valid until the next call of this; grpc.aio.EOF when the peer has sent its last.

        `place` may be asked where the end of a large one goes (gemps.http2), which then is what is returned. Nothing is
        written there any more when this has returned, or raised.
        """
        self._check()
        incoming = self._http2
        if self._is_taken:
            self._is_taken = False
            incoming.release()
        self._is_reading = incoming.wants_data = True
        incoming.place = place
        receipts = 0
        try:
            if incoming.has_more:
                self._hear(0)
            elif self._has_answered and not self._is_half_closed:  # which the peer has yet to read before it says more
                await self._more()
            while not (incoming.has_message or self._is_half_closed):
                self._check()
                if not self._receive():
                    await self._more()
                elif (receipts := receipts + 1) % _RECEIPTS == 0:
                    await asyncio.sleep(0)
        finally:
            self._is_reading = self._has_answered = False
            incoming.wants_data = not incoming.stream
            incoming.place = None
            if place is not None:
                incoming.displace()
        if not incoming.has_message:
            return grpc.aio.EOF
        message: Buffer = incoming.message
        if len(message) <= SMALL_BYTES:  # others stay where they were received until the next call
            message = bytes(message)
            incoming.release()
        else:
            self._is_taken = True
        if incoming.has_more:
            self._hear(0)  # what has come with it: a handler that answers may need the window that it opens
        if self._has_moved(len(message)):
            await asyncio.sleep(0)
        return message

    async def write(self, *message: Buffer) -> None:
        """Send a message, which may be in pieces; returns when the kernel has all of it."""
        self._check()
        self._has_answered = True
        if not self._frames and (small := self._http2.frame_of(*message)) is not None:
            self._put_small(small)
            if self._frames:
                await self._drain()
            if self._has_moved(len(small)):
                await asyncio.sleep(0)
            return
        pieces = http2.pieces_of(message)
        size = sum(piece.nbytes for piece in pieces)
        while pieces:
            self._check()
            frames = self._http2.cut(pieces)
            if frames:
                self._frames.extend(frames)
                await self._drain()
            elif self._http2.space():
                await self._more()
            else:  # the word that opens its window can only come behind what nobody reads
                await self.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too much was sent ahead of an answer: read it")
        if self._has_moved(size):
            await asyncio.sleep(0)

    def _has_moved(self, count: int) -> bool:
        """So many bytes were read or written; whether it is time that others have their turn."""
        self._moved += count
        is_time = self._moved >= _TURN
        if is_time:
            self._moved = 0
        return is_time

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Sequence[tuple[str, bytes]] = ()
    ) -> NoReturn:
        """End the call with a status. Always raises grpc.aio.AbortError."""
        if self._task is asyncio.current_task():
            self._end_call(code, details, trailing_metadata)
        raise grpc.aio.AbortError

    # --- the call

    async def _run(self) -> None:
        code, details = grpc.StatusCode.OK, ""
        try:
            await self._serve(self)
        except grpc.aio.AbortError:
            return
        except asyncio.CancelledError:
            if self._is_over:
                return
            code, details = grpc.StatusCode.CANCELLED, "the server ended the call"
        except Exception:
            logger.exception("a call at the commit port failed")
            code, details = grpc.StatusCode.INTERNAL, "an error in the server; its log has the particulars"
        if self._task is asyncio.current_task():
            self._end_call(code, details, ())

    def _end_call(self, code: grpc.StatusCode, details: str, metadata: Sequence[tuple[str, bytes]]) -> None:
        stream = self._http2.stream
        if self._is_over or not stream:
            return
        number: int = code.value[0]
        block: list[tuple[str, str | bytes]] = [("grpc-status", str(number)), ("grpc-message", quote(details))]
        if not self._has_begun:
            block = [(":status", "200"), ("content-type", "application/grpc"), *block]
        block += [(name, base64.b64encode(value).rstrip(b"=")) for name, value in metadata]
        self._put_frame(http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, write_headers(block))
        if not self._is_half_closed:
            self._put_frame(http2.RESET, 0, http2.NO_ERROR.to_bytes(4, "big"))
        self._forget_call()
        self._limit_time(_ENDING if self._frames else _WITHOUT_CALL)

    def _forget_call(self) -> None:
        """What the peer still sends of it, and what is here already, is passed over."""
        self._http2.open(0)
        self._http2.wants_data = True
        self._is_taken = False
        self._task = None
        self._had_call = True
        self._loop.call_soon(self._hear_on)

    def _hear_on(self) -> None:
        """Act on what has come behind the last word of a call; the next one may have."""
        if not self._is_over:
            with suppress(asyncio.CancelledError):
                self._hear(0)
            self._listen()

    # --- reading

    def _listen(self) -> None:
        if not self._is_listening and not self._is_over:
            self._is_listening = True
            self._loop.add_reader(self._socket, self._on_readable)

    def _on_readable(self) -> None:
        try:
            self._receive()
        except asyncio.CancelledError:  # the end of the connection, of which the call is told
            return

    def _receive(self) -> bool:
        """Take in what has come, and act on it; whether anything had. Raises CancelledError when it was the end."""
        if len(self._preface) < len(http2.PREFACE):
            return self._receive_preface()
        space = self._http2.space()
        if not space:
            # The peer has said more than it was asked: it waits until it is.
            self._loop.remove_reader(self._socket)
            self._is_listening = False
            self._tell()
            return False
        try:
            count = self._socket.recv_into(space)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            count = 0
        if not count:
            self.close()
            raise asyncio.CancelledError
        self._hear(count)
        return True

    def _receive_preface(self) -> bool:
        try:
            got = self._socket.recv(len(http2.PREFACE) - len(self._preface))
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            got = b""
        self._preface += got
        if not got or not http2.PREFACE.startswith(self._preface):
            self.close()
            raise asyncio.CancelledError
        return True

    def _hear(self, count: int) -> None:
        try:
            self._http2.received(count)
        except ProtocolError as error:
            self._refuse(error)
        if self._http2.answers:
            self._say()
        if not self._is_reading or self._http2.has_message or self._is_half_closed:
            self._tell()

    def _refuse(self, error: ProtocolError) -> NoReturn:
        """The call, or all of the connection, cannot go on."""
        if isinstance(error, BadMessageError) and self._task is not None:
            self._task.cancel()
            code = grpc.StatusCode.RESOURCE_EXHAUSTED if error.is_too_large else grpc.StatusCode.INTERNAL
            self._end_call(code, str(error), ())
            raise asyncio.CancelledError
        logger.info("a connection from %s at the commit port ended: %s", self._peer, error)
        last = self._last_stream.to_bytes(4, "big") + error.code.to_bytes(4, "big")
        with suppress(OSError):
            if not self._first_is_torn:
                self._socket.send(http2.frame(http2.GOAWAY, 0, 0, last + str(error).encode()[:200]))
        self.close()
        raise asyncio.CancelledError

    async def _more(self) -> None:
        """Wait until the peer has said something that matters."""
        if self._is_reading:
            self._http2.forget_memory()
        self._listen()
        self._news = self._loop.create_future()
        try:
            await self._news
        finally:
            self._news = None

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _check(self) -> None:
        """Raise CancelledError in a handler whose call is over."""
        if self._is_over or self._task is None or (self._had_call and self._task is not asyncio.current_task()):
            raise asyncio.CancelledError

    def _limit_time(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._is_over:
            self._timer = self._loop.call_later(seconds, self.close)

    # --- writing

    def _say(self) -> None:
        said, self._http2.answers = self._http2.answers, bytearray()
        self._put(said)

    def _put_frame(self, kind: int, flags: int, payload: bytes) -> None:
        self._put(http2.frame(kind, flags, self._http2.stream, payload))

    def _put(self, said: bytes | bytearray) -> None:
        self._frames.append([memoryview(said)])
        self._pump()
        if len(self._frames) > _MOST_FRAMES:
            self.close()

    def _put_small(self, said: bytes) -> None:
        """Send a frame of data; what the kernel does not take waits."""
        try:
            sent = self._socket.send(said)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self.close()
            raise asyncio.CancelledError from None
        if sent < len(said):
            view = memoryview(said)
            left = [view[: http2.FRAME_HEADER], view[http2.FRAME_HEADER :]]
            http2.take(left, sent)
            self._first_is_torn = sent > 0
            self._frames.append(left)

    def _pump(self) -> None:
        """Send as much as the kernel takes."""
        frames = self._frames
        try:
            while frames and not self._is_over:
                views = frames[0] if len(frames) == 1 else [view for one in frames for view in one][:1000]
                sent = self._socket.sendmsg(views)
                while sent:
                    first = frames[0]
                    size = sum(view.nbytes for view in first)
                    if sent < size:
                        http2.take(first, sent)
                        self._first_is_torn = True
                        break
                    sent -= size
                    frames.popleft()
                    self._first_is_torn = False
        except (BlockingIOError, InterruptedError):
            if not self._is_waiting_to_write:
                self._is_waiting_to_write = True
                self._loop.add_writer(self._socket, self._pump)
            return
        except OSError:
            self.close()
            return
        if self._is_waiting_to_write:
            self._is_waiting_to_write = False
            self._loop.remove_writer(self._socket)
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    async def _drain(self) -> None:
        """Return when the kernel has everything. Cancelled, what has not begun to be sent is not."""
        self._pump()
        self._check()
        if not self._frames:
            return
        self._drained = self._loop.create_future()
        try:
            await self._drained
        except asyncio.CancelledError:
            torn = [[memoryview(b"".join(self._frames.popleft()))]] if self._first_is_torn else []
            unsent = [one for one in self._frames if one[0][3] == http2.DATA]
            self._frames = deque([*torn, *(one for one in self._frames if one[0][3] != http2.DATA)])
            self._http2.put_back(unsent)
            raise
        finally:
            self._drained = None

    # --- what the peer says beside messages (http2.Listener)

    def headers(self, stream: int, headers: Mapping[str, bytes], *, last: bool) -> None:
        """A call."""
        if stream % 2 == 0 or stream <= self._last_stream:
            raise ProtocolError(f"a call has the number {stream}, after {self._last_stream}")
        self._last_stream = stream
        if self._task is not None:
            self._http2.answers += http2.frame(http2.RESET, 0, stream, http2.REFUSED_STREAM.to_bytes(4, "big"))
            return
        self._http2.open(stream)
        self._http2.wants_data = False
        self._headers = headers
        self._is_half_closed = last
        self._has_begun = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._task = self._loop.create_task(self._run())

    def half_closed(self) -> None:
        """The peer has sent its last message."""
        self._is_half_closed = True

    def reset(self, stream: int, code: int) -> None:
        """The peer has ended the call."""
        if self._task is not None and stream == self._http2.stream:
            self._task.cancel()
            self._forget_call()
            self._limit_time(_WITHOUT_CALL)

    def going_away(self, last_stream: int, text: bytes) -> None:
        """The peer makes no more calls; the one that runs may go on."""

    def pong(self) -> None:
        """The answer to a ping that was never sent."""


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
    except OSError:  # it has gone already
        return "unknown"
    host, port = name[0].removeprefix("::ffff:"), name[1]  # which IPv4 goes by at an address for both
    return f"ipv6:{quote(f'[{host}]')}:{port}" if ":" in host else f"ipv4:{host}:{port}"
