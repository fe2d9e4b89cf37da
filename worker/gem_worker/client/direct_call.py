"""One bidirectional gRPC call on a plain HTTP/2 connection of its own, made in the caller's thread.

gRPC's own Python client hands each message through three threads, and copies its bytes twice out of Python's memory and
twice into it. The Commit call moves the whole model both ways at every step, and for a small model it is the step: so
here the caller's thread writes to the socket, straight from the delta, and reads from it. Nothing else is done here:
what a message means, what follows when a call ends, and every other call are elsewhere; TLS and proxies are gRPC's
(channel.py says when this is used). What is spoken is RFC 9113 (HTTP/2) and gRPC's PROTOCOL-HTTP2.md.

One stream a connection; it ends when the stream does. Between two commits nobody reads: `look` does, now and then, so
that a peer's ping is answered and an end is noticed.
"""

import base64
import contextlib
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn
from urllib.parse import unquote

import grpc

from gem_worker.client.header_block import UnknownEncodingError, read_headers, write_headers
from gem_worker.client.interrupts import interrupts_wait
from gem_worker.client.send import Message

Metadata = Sequence[tuple[str, str]]

# Types of frames, their flags and settings: RFC 9113, sections 6 and 7. The last setting is gRPC's own: binary
# metadata may come as it is.
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
_END_STREAM = _ACK = 0x1
_END_HEADERS, _PADDED, _PRIORITY = 0x4, 0x8, 0x20
_TABLE_SIZE, _ENABLE_PUSH, _INITIAL_WINDOW, _MAX_FRAME, _TRUE_BINARY = 1, 2, 4, 5, 0xFE03
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_STREAM = 1
_FRAME_HEADER = 9
# What either side may send before it has heard of the other's settings.
_DEFAULT_WINDOW, _DEFAULT_FRAME = 65_535, 16_384
_LARGEST_FRAME = (1 << 24) - 1
_LARGEST_WINDOW = (1 << 31) - 1

# What the server may send ahead of the reader: in the kernel's buffers, not in this process.
_OUR_WINDOW = 16 << 20
# Small frames, and what of a large one came with them; the rest of a large one is read to where it belongs.
_BUFFER = 64 << 10
_READ_DIRECTLY = 16 << 10
# Seconds: for the connection to come about, as with gRPC; a ping on an idle one, and how long its answer may take.
_CONNECT_TIMEOUT = 20.0
_PING_AFTER, _PING_TIMEOUT = 60.0, 20.0

# What a reset of the stream means: gRPC's table (PROTOCOL-HTTP2.md, "Errors").
_OF_RESET = {
    7: grpc.StatusCode.UNAVAILABLE,
    8: grpc.StatusCode.CANCELLED,
    11: grpc.StatusCode.RESOURCE_EXHAUSTED,
    12: grpc.StatusCode.PERMISSION_DENIED,
}
# What an answer of HTTP without a status of gRPC means (http-grpc-status-mapping.md).
_OF_HTTP = {
    b"400": grpc.StatusCode.INTERNAL,
    b"401": grpc.StatusCode.UNAUTHENTICATED,
    b"403": grpc.StatusCode.PERMISSION_DENIED,
    b"404": grpc.StatusCode.UNIMPLEMENTED,
    b"429": grpc.StatusCode.UNAVAILABLE,
    b"502": grpc.StatusCode.UNAVAILABLE,
    b"503": grpc.StatusCode.UNAVAILABLE,
    b"504": grpc.StatusCode.UNAVAILABLE,
}
_CODES = {str(code.value[0]).encode(): code for code in grpc.StatusCode}


class Entry(NamedTuple):
    """One of a call's trailing metadata."""

    key: str
    value: bytes


class CallEnded(grpc.RpcError):
    """How a call ended, in gRPC's terms."""

    def __init__(self, code: grpc.StatusCode, details: str, trailers: tuple[Entry, ...] = ()) -> None:
        super().__init__(f"{code.name}: {details}")
        self._code = code
        self._details = details
        self._trailers = trailers

    def code(self) -> grpc.StatusCode:
        """The status."""
        return self._code

    def details(self) -> str:
        """Its message."""
        return self._details

    def trailing_metadata(self) -> tuple[Entry, ...]:  # type: ignore[override]
        """What came with it, as far as it is of use."""
        return self._trailers


class _OverError(Exception):
    """The connection cannot be used any more; the reason is in `_end`."""


class DirectCall:
    """One call; see CommitCall.

    Args:
        address: HOST:PORT, [IPV6]:PORT or unix:PATH, checked.
        method: /package.Service/Method.
        metadata: of the call.
        limit: bytes that a message of the server may have.

    Attributes:
        is_foreign: the peer encodes in a way that only gRPC itself understands.
    """

    def __init__(self, address: str, method: str, metadata: Metadata, limit: int) -> None:
        self._address = address
        self._method = method
        self._metadata = metadata
        self._limit = limit
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()  # whoever reads or writes
        self._cancelled = False
        self._end: CallEnded | None = None
        self.is_foreign = False
        self._is_broken = False  # nothing can be written any more
        # Sending.
        self._window = self._stream_window = _DEFAULT_WINDOW
        self._initial_window = _DEFAULT_WINDOW
        self._max_frame = _DEFAULT_FRAME
        self._sent_at = 0.0
        self._pinged_at: float | None = None
        # Receiving: bytes [_start, _stop) of the buffer are not read yet.
        self._buffer = memoryview(bytearray(_BUFFER))
        self._start = self._stop = 0
        self._frame_left = self._padding_left = 0  # of the DATA frame being read
        self._frame_ends_stream = False
        self._unacknowledged = 0
        self._headers: bytearray | None = None
        self._headers_end_stream = False
        # The message being received: five bytes that say how long it is, then itself.
        self._prefix = bytearray()
        self._message = memoryview(bytearray())
        self._size = self._received = 0
        self._is_whole = False
        self._is_taken = False  # by the caller of receive, who may still look at it

    @contextlib.contextmanager
    def exchange(self) -> Iterator[None]:
        """See CommitCall."""
        with interrupts_wait(self.cancel), self._lock:
            try:
                yield
            finally:
                self._release_message()

    def send(self, messages: Iterable[Message]) -> None:
        """See CommitCall; within `exchange`. It returns when the kernel has taken all of them."""
        self._release_message()
        if self._end is not None:
            return
        with contextlib.suppress(_OverError):
            if self._socket is None:
                self._connect()
            for message in messages:
                pieces = [memoryview(piece).cast("B") for piece in message if len(piece)]
                size = sum(piece.nbytes for piece in pieces)
                self._write_message([memoryview(struct.pack(">BI", 0, size)), *pieces], 5 + size)

    def receive(self) -> memoryview | None:
        """See CommitCall; within `exchange`. Raises CallEnded."""
        self._release_message()
        if self._end is None:
            with contextlib.suppress(_OverError):
                while not self._is_whole:
                    self._step(wait=True)
                self._is_taken = True
                return self._message[: self._size]
        end = self._end
        if end is None or end.code() is grpc.StatusCode.OK:
            return None
        raise end

    def look(self) -> bool:
        """See CommitCall. Answers what has come, without waiting for more."""
        if self._socket is not None and self._end is None and self._lock.acquire(blocking=False):
            # Else somebody reads or writes, and will find out.
            try:
                with contextlib.suppress(_OverError):
                    while not self._is_whole and self._step(wait=False):
                        pass
                    self._keep_alive()
            finally:
                self._lock.release()
        return self._end is None and not self._cancelled

    def cancel(self) -> None:
        """See CommitCall."""
        self._cancelled = True
        connection = self._socket
        if connection is not None:
            with contextlib.suppress(OSError):  # it has ended by itself
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """See CommitCall."""
        self.cancel()
        if self._socket is not None:
            self._socket.close()

    def _release_message(self) -> None:
        if self._is_taken:
            self._prefix.clear()
            self._size = self._received = 0
            self._is_whole = self._is_taken = False

    # --- the connection

    def _connect(self) -> None:
        try:
            self._open()
        except OSError as error:
            if self._cancelled:
                self._fail(grpc.StatusCode.CANCELLED, "cancelled")
            self._fail(grpc.StatusCode.UNAVAILABLE, f"no connection to {self._address}: {error}")
        host = "localhost" if self._address.startswith("unix:") else self._address
        headers = write_headers(
            (
                (":method", "POST"),
                (":scheme", "http"),
                (":path", self._method),
                (":authority", host),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                ("user-agent", "gemps"),
                *self._metadata,
            )
        )
        ours = {
            _TABLE_SIZE: 0,
            _ENABLE_PUSH: 0,
            _INITIAL_WINDOW: _OUR_WINDOW,
            _MAX_FRAME: _LARGEST_FRAME,
            _TRUE_BINARY: 1,
        }
        settings = b"".join(struct.pack(">HI", *one) for one in ours.items())
        self._write(
            [
                memoryview(
                    _PREFACE
                    + _frame(_SETTINGS, 0, 0, settings)
                    + _frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", _OUR_WINDOW - _DEFAULT_WINDOW))
                    + _frame(_HEADERS, _END_HEADERS, _STREAM, headers)
                )
            ]
        )

    def _open(self) -> None:
        failed: OSError | None = None
        for family, name in _addresses(self._address):
            connection = self._socket = socket.socket(family, socket.SOCK_STREAM)  # which `cancel` shuts down
            try:
                if self._cancelled:
                    raise ConnectionAbortedError
                connection.settimeout(_CONNECT_TIMEOUT)
                connection.connect(name)
                connection.settimeout(None)
                if family != socket.AF_UNIX:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    if sys.platform == "linux":  # as gRPC does: a path that takes nothing for so long is dead
                        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * _PING_TIMEOUT))
            except OSError as error:
                connection.close()
                failed = error
            else:
                return
        raise failed or OSError("the name has no address")

    def _keep_alive(self) -> None:
        now = time.monotonic()
        if self._pinged_at is not None and now - self._pinged_at > _PING_TIMEOUT:
            self._fail(grpc.StatusCode.UNAVAILABLE, "a ping was not answered")
        if self._pinged_at is None and now - self._sent_at > _PING_AFTER:
            self._pinged_at = now
            self._write([memoryview(_frame(_PING, 0, 0, bytes(8)))])

    def _fail(self, code: grpc.StatusCode, details: str) -> NoReturn:
        """The end, unless it has come before."""
        if self._end is None:
            self._end = CallEnded(code, details)
        raise _OverError

    # --- sending

    def _write_message(self, views: list[memoryview], left: int) -> None:
        while left:
            room = min(self._window, self._stream_window, self._max_frame, left)
            if room <= 0:
                if self._is_whole:
                    self._fail(grpc.StatusCode.INTERNAL, "the server spoke out of turn")
                self._step(wait=True)
                continue
            part = _take(views, room)
            self._window -= room
            self._stream_window -= room
            left -= room
            self._write([memoryview(_frame_header(room, _DATA, 0, _STREAM)), *part])

    def _write(self, views: list[memoryview]) -> None:
        assert self._socket is not None
        if self._is_broken:
            return
        if len(views) > 1 and views[1].nbytes < _FRAME_HEADER * 100:  # a call with fewer pieces is faster
            views[:2] = [memoryview(b"".join(views[:2]))]
        left = sum(view.nbytes for view in views)
        try:
            while True:
                sent = self._socket.sendmsg(views)
                left -= sent
                if not left:
                    break
                _take(views, sent)
        except OSError as error:
            self._read_last_words()
            self._broken(error)
        self._sent_at = time.monotonic()

    def _read_last_words(self) -> None:
        """A server may have said why before it hung up."""
        if not self._is_broken:
            self._is_broken = True
            while not self._is_whole and self._step(wait=False):
                pass

    # --- receiving

    def _step(self, *, wait: bool) -> bool:
        """Read once, and act on what is complete; False when nothing had come. Raises _OverError when it is the end."""
        if self._start < self._stop and self._parse():
            return True
        wanted = min(self._frame_left, self._size - self._received)
        if self._start == self._stop and wanted >= _READ_DIRECTLY:
            got = self._read(self._message[self._received : self._received + wanted], wait=wait, all_of_it=True)
            self._received += got
            self._frame_left -= got
            self._message_progressed()
            return got > 0
        if self._start == self._stop:
            self._start = self._stop = 0
        elif self._start:
            left = bytes(self._buffer[self._start : self._stop])
            self._buffer[: len(left)] = left
            self._start, self._stop = 0, len(left)
        got = self._read(self._buffer[self._stop :], wait=wait)
        self._stop += got
        self._parse()
        return got > 0

    def _read(self, into: memoryview, *, wait: bool, all_of_it: bool = False) -> int:
        assert self._socket is not None
        flags = (socket.MSG_WAITALL if all_of_it else 0) if wait else socket.MSG_DONTWAIT
        try:
            got = self._socket.recv_into(into, 0, flags)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._broken(error)
        if got == 0 and into.nbytes:
            self._broken(None)
        return got

    def _broken(self, error: OSError | None) -> NoReturn:
        if self._cancelled:
            self._fail(grpc.StatusCode.CANCELLED, "cancelled")
        self._fail(grpc.StatusCode.UNAVAILABLE, f"the connection broke: {error if error is not None else 'it ended'}")

    def _parse(self) -> bool:
        """Act on what is in the buffer, up to the end of a message; whether there was anything to act on."""
        begin = self._start
        while not self._is_whole:
            available = self._stop - self._start
            if self._frame_left:
                if not available:
                    break
                self._take_data(min(available, self._frame_left))
            elif self._padding_left:
                if not available:
                    break
                skipped = min(available, self._padding_left)
                self._start += skipped
                self._padding_left -= skipped
            elif self._frame_ends_stream:
                self._fail(grpc.StatusCode.INTERNAL, "the stream ended without a status")
            elif available < _FRAME_HEADER or not self._take_frame(available):
                break
        return self._start > begin

    def _take_frame(self, available: int) -> bool:
        """The frame at the buffer's start, if enough of it is there."""
        head = self._buffer[self._start : self._start + _FRAME_HEADER]
        length = head[0] << 16 | head[1] << 8 | head[2]
        kind, flags = head[3], head[4]
        stream = int.from_bytes(head[5:9], "big") & 0x7FFFFFFF
        if kind == _DATA:
            padded = 1 if flags & _PADDED else 0
            if available < _FRAME_HEADER + padded:
                return False
            padding = self._buffer[self._start + _FRAME_HEADER] if padded else 0
            if stream != _STREAM or length < padded + padding:
                self._fail(grpc.StatusCode.INTERNAL, "a frame of data that was not asked for")
            self._start += _FRAME_HEADER + padded
            self._frame_left, self._padding_left = length - padded - padding, padding
            self._frame_ends_stream = bool(flags & _END_STREAM)
            self._acknowledge(length)
            return True
        if length > _BUFFER - _FRAME_HEADER:
            self._fail(grpc.StatusCode.INTERNAL, f"a frame of type {kind} and {length} bytes")
        if available < _FRAME_HEADER + length:
            return False
        self._start += _FRAME_HEADER
        payload = bytes(self._buffer[self._start : self._start + length])
        self._start += length
        try:
            self._control(kind, flags, stream, payload)
        except (IndexError, struct.error, ValueError):
            self._fail(grpc.StatusCode.INTERNAL, f"a frame of type {kind} that makes no sense")
        return True

    def _take_data(self, count: int) -> None:
        """`count` bytes of a DATA frame, or as many of them as the message still takes."""
        if len(self._prefix) < 5:
            took = min(count, 5 - len(self._prefix))
            self._prefix += self._buffer[self._start : self._start + took]
            if len(self._prefix) == 5:
                self._begin_message()
        else:
            took = min(count, self._size - self._received)
            self._message[self._received : self._received + took] = self._buffer[self._start : self._start + took]
            self._received += took
        self._start += took
        self._frame_left -= took
        self._message_progressed()

    def _begin_message(self) -> None:
        compressed, size = struct.unpack(">BI", self._prefix)
        if compressed:
            self._fail(grpc.StatusCode.INTERNAL, "a compressed message, which was not asked for")
        if size > self._limit:
            self._fail(grpc.StatusCode.RESOURCE_EXHAUSTED, f"a message of {size} bytes, more than {self._limit}")
        self._size = size
        if size > self._message.nbytes:
            self._message = memoryview(bytearray(size))

    def _message_progressed(self) -> None:
        self._is_whole = len(self._prefix) == 5 and self._received == self._size

    def _acknowledge(self, length: int) -> None:
        self._unacknowledged += length
        if self._unacknowledged >= _OUR_WINDOW // 4:
            more = struct.pack(">I", self._unacknowledged)
            self._unacknowledged = 0
            self._write([memoryview(_frame(_WINDOW_UPDATE, 0, 0, more) + _frame(_WINDOW_UPDATE, 0, _STREAM, more))])

    def _control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._headers is not None and kind != _CONTINUATION:
            self._fail(grpc.StatusCode.INTERNAL, "a header block that is torn")
        if kind == _SETTINGS:
            if not flags & _ACK:
                self._take_settings(payload)
                self._write([memoryview(_frame(_SETTINGS, _ACK, 0))])
        elif kind == _PING:
            if flags & _ACK:
                self._pinged_at = None
            else:
                self._write([memoryview(_frame(_PING, _ACK, 0, payload))])
        elif kind == _WINDOW_UPDATE:
            more = int.from_bytes(payload[:4], "big") & 0x7FFFFFFF
            if stream:
                self._stream_window += more
            else:
                self._window += more
            if max(self._stream_window, self._window) > _LARGEST_WINDOW:
                self._fail(grpc.StatusCode.INTERNAL, "a window that is too large")
        elif kind == _GOAWAY:
            if int.from_bytes(payload[:4], "big") & 0x7FFFFFFF < _STREAM:
                self._fail(grpc.StatusCode.UNAVAILABLE, f"the server took no more calls: {payload[8:200]!r}")
        elif kind == _RESET and stream == _STREAM:
            code = int.from_bytes(payload[:4], "big")
            self._fail(_OF_RESET.get(code, grpc.StatusCode.INTERNAL), f"the stream was reset, code {code}")
        elif kind in (_HEADERS, _CONTINUATION) and stream == _STREAM:
            self._take_headers(kind, flags, payload)

    def _take_settings(self, payload: bytes) -> None:
        for key, value in struct.iter_unpack(">HI", payload):
            if key == _INITIAL_WINDOW:
                self._stream_window += value - self._initial_window
                self._initial_window = value
            elif key == _MAX_FRAME and _DEFAULT_FRAME <= value <= _LARGEST_FRAME:
                self._max_frame = value

    def _take_headers(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == _HEADERS:
            padding = payload[0] if flags & _PADDED else 0
            begin = (1 if flags & _PADDED else 0) + (5 if flags & _PRIORITY else 0)
            self._headers = bytearray(payload[begin : len(payload) - padding])
            self._headers_end_stream = bool(flags & _END_STREAM)
        elif self._headers is None or len(self._headers) + len(payload) > _BUFFER:
            self._fail(grpc.StatusCode.INTERNAL, "a header block without a beginning, or without an end")
        else:
            self._headers += payload
        if not flags & _END_HEADERS:
            return
        block, self._headers = bytes(self._headers or b""), None
        try:
            headers = read_headers(block)
        except UnknownEncodingError as error:
            self.is_foreign = True
            self._fail(grpc.StatusCode.UNAVAILABLE, f"the path to the server uses headers with {error}")
        self._judge(headers)

    def _judge(self, headers: dict[str, bytes]) -> None:
        status = headers.get(":status", b"200")
        if "grpc-status" in headers:
            code = _CODES.get(headers["grpc-status"], grpc.StatusCode.UNKNOWN)
            message = unquote(headers.get("grpc-message", b"").decode("ascii", "replace"))
            trailers = [Entry(key, _binary(value)) for key, value in headers.items() if key.endswith("-bin")]
            if self._end is None:
                self._end = CallEnded(code, message, tuple(trailers))
            raise _OverError
        if status != b"200":
            self._fail(_OF_HTTP.get(status, grpc.StatusCode.UNKNOWN), f"HTTP status {status.decode('latin-1')}")
        if self._headers_end_stream:
            self._fail(grpc.StatusCode.INTERNAL, "the stream ended without a status")


def _addresses(address: str) -> list[tuple[socket.AddressFamily, Any]]:
    """What to connect to, in this order. Raises OSError when the name is not known."""
    if address.startswith("unix:"):
        return [(socket.AF_UNIX, address.removeprefix("unix:"))]
    host, _, port = address.rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    return [(family, name) for family, _, _, _, name in found]


def _frame_header(length: int, kind: int, flags: int, stream: int) -> bytes:
    return struct.pack(">BHBBI", length >> 16, length & 0xFFFF, kind, flags, stream)


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return _frame_header(len(payload), kind, flags, stream) + payload


def _take(views: list[memoryview], count: int) -> list[memoryview]:
    """Remove the first `count` bytes from `views`, and return them."""
    taken = []
    while count:
        first = views[0]
        if first.nbytes <= count:
            taken.append(views.pop(0))
            count -= first.nbytes
        else:
            taken.append(first[:count])
            views[0] = first[count:]
            count = 0
    return taken


def _binary(value: bytes) -> bytes:
    """A value of binary metadata: as it is behind a zero, or base64 (PROTOCOL-HTTP2.md; with and without padding)."""
    if value[:1] == b"\0":
        return value[1:]
    try:
        return base64.b64decode(value + b"=" * (-len(value) % 4))
    except ValueError:
        return b""
