"""One Commit call on a plain HTTP/2 connection of its own, made in the caller's thread.

gRPC's own Python client hands each message through three threads, and copies its bytes twice out of Python's memory and
twice into it. So here the caller's thread writes to the socket, straight from the delta, and reads from it. Nothing
else is done here: what is spoken is gemps.http2's, what a message means, what follows when a call ends, and every other
call are elsewhere; TLS and proxies are gRPC's (channel.py says when this is used).

The connection ends when the call does. Between two commits nobody reads: `look` does, now and then, so that a peer's
ping is answered and an end is noticed.

Ctrl-C and the like need no waiting here, as they do inside gRPC (interrupts.py): a handler that raises leaves the
connection in any state, but nothing else, and whoever was interrupted closes the call.
"""

import base64
import contextlib
import socket
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Self
from urllib.parse import unquote

import grpc
from gemps import http2
from gemps.header_block import write_headers
from gemps.http2 import BadMessageError, ForeignHeadersError, Http2, Place, ProtocolError

from gem_worker.client.send import Message

Metadata = Sequence[tuple[str, str]]

_STREAM = 1
# Metadata of a shortcut (session.proto), from either side.
_INCARNATION = "gemps-incarnation"
# What the server may send before it hears from the reader; TCP stops it before that.
_WINDOW = 1 << 30
# Small frames, and what of a large one came with them, which is copied once more.
_BUFFER = 17 << 10
# Seconds: for the connection to come about, as with gRPC; a ping on an idle one, and how long its answer may take.
_CONNECT_TIMEOUT = 20.0
_PING_AFTER, _PING_TIMEOUT = 60.0, 20.0
# Seconds for which a peer that has spoken is taken to be there still, without a look.
_FRESH = 0.1
# The same for a shortcut, which may lead nowhere: to connect, and to be answered by a busy server.
_SHORTCUT_TIMEOUT, _SHORTCUT_ANSWER = 2.0, 10.0

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


class Route(NamedTuple):
    """Where a call can be made.

    `address`: HOST:PORT, [IPV6]:PORT or unix:PATH, checked. `incarnation`: the address is a shortcut to this server,
    which may not exist, or be another one's: so it is taken only when somebody answers there soon who accepts the call
    and says the same number.
    """

    address: str
    metadata: Metadata
    incarnation: str = ""


class DirectCall:
    """One call; see CommitCall.

    Args:
        routes: where to make it: the first one that can be gone.
        method: /package.Service/Method.
        limit: bytes that a message of the server may have.

    Attributes:
        is_foreign: the peer encodes in a way that only gRPC itself understands.
        missed: why the shortcut was not taken.
    """

    def __init__(self, routes: Sequence[Route], method: str, limit: int) -> None:
        self._routes = routes
        self._method = method
        self._limit = limit
        self._socket: socket.socket | None = None
        self._http2 = self._new_http2()
        self._lock = threading.Lock()  # whoever reads or writes
        self._cancelled = False
        self._end: CallEnded | None = None
        self.is_foreign = False
        self.missed: str | None = None
        self._is_accepted = False
        self._expected = b""  # what accepts the call has to say it
        self._is_broken = False  # nothing can be written any more
        self._sent_at = self._heard_at = 0.0
        self._pinged_at: float | None = None
        self._is_taken = False  # the message, by the caller of receive, who may still look at it

    def exchange(self) -> Self:
        """See CommitCall."""
        return self

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_taken:
            self._release_message()
        self._lock.release()

    def send(self, messages: Iterable[Message]) -> None:
        """See CommitCall; within `exchange`. It returns when the kernel has taken all of them."""
        if self._is_taken:
            self._release_message()
        if self._end is not None:
            return
        try:
            if self._socket is None:
                self._connect()
            for message in messages:
                frame = self._http2.frame_of(*message)
                if frame is not None:
                    self._write_small(frame)
                else:
                    self._write_message(http2.pieces_of(message))
        except _OverError:
            pass

    def receive(self, place: Place | None = None) -> memoryview | None:
        """See CommitCall; within `exchange`. Raises CallEnded."""
        if self._is_taken:
            self._release_message()
        if self._end is None:
            connection = self._http2
            connection.place = place
            try:
                while not connection.has_message:
                    self._step(wait=True)
            except _OverError:
                pass
            else:
                self._is_taken = True
                self._heard_at = time.monotonic()
                connection.place = None
                return connection.message
        end = self._end
        if end is None or end.code() is grpc.StatusCode.OK:
            return None
        raise end

    def look(self) -> bool:
        """See CommitCall. Answers what has come, without waiting for more; a peer that has just spoken is there."""
        if self._end is None and time.monotonic() - self._heard_at < _FRESH:
            return not self._cancelled
        if self._socket is not None and self._end is None and self._lock.acquire(blocking=False):
            # Else somebody reads or writes, and will find out.
            try:
                with contextlib.suppress(_OverError):
                    while not self._http2.has_message and self._step(wait=False):
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
        self._is_taken = False
        self._http2.release()

    # --- the connection

    def _new_http2(self) -> Http2:
        return Http2(self, limit=self._limit, window=_WINDOW, buffer_bytes=_BUFFER)

    def _connect(self) -> None:
        for route in self._routes:
            self._expected = route.incarnation.encode()
            if not route.incarnation:
                self._begin(route, _CONNECT_TIMEOUT)
                return
            with contextlib.suppress(_OverError):
                self._begin(route, _SHORTCUT_TIMEOUT)
                self._until_accepted()
                return
            if self._cancelled:
                raise _OverError
            self.missed = str(self._end)
            if self._socket is not None:
                self._socket.close()
            self._http2 = self._new_http2()
            # Whoever was there says nothing about the next one.
            self._end, self._is_broken, self.is_foreign = None, False, False

    def _begin(self, route: Route, timeout: float) -> None:
        try:
            self._open(route.address, timeout)
        except OSError as error:
            if self._cancelled:
                self._fail(grpc.StatusCode.CANCELLED, "cancelled")
            self._fail(grpc.StatusCode.UNAVAILABLE, f"no connection to {route.address}: {error}")
        host = "localhost" if route.address.startswith("unix:") else route.address
        headers = write_headers(
            (
                (":method", "POST"),
                (":scheme", "http"),
                (":path", self._method),
                (":authority", host),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                ("user-agent", "gemps"),
                *(((_INCARNATION, route.incarnation),) if route.incarnation else ()),
                *route.metadata,
            )
        )
        self._http2.answers += http2.PREFACE
        self._http2.begin()
        self._http2.open(_STREAM)
        self._http2.answers += http2.frame(http2.HEADERS, http2.END_HEADERS, _STREAM, headers)
        self._answer()

    def _open(self, address: str, timeout: float) -> None:
        failed: OSError | None = None
        for family, name in _addresses(address):
            connection = self._socket = socket.socket(family, socket.SOCK_STREAM)  # which `cancel` shuts down
            try:
                if self._cancelled:
                    raise ConnectionAbortedError
                connection.settimeout(timeout)
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

    def _until_accepted(self) -> None:
        assert self._socket is not None
        deadline = time.monotonic() + _SHORTCUT_ANSWER
        try:
            while not self._is_accepted:
                left = deadline - time.monotonic()
                if left <= 0:
                    self._fail(grpc.StatusCode.DEADLINE_EXCEEDED, "the call was not accepted in time")
                self._socket.settimeout(left)
                self._step(wait=True)
        finally:
            with contextlib.suppress(OSError):
                self._socket.settimeout(None)

    def _keep_alive(self) -> None:
        now = time.monotonic()
        if self._pinged_at is not None and now - self._pinged_at > _PING_TIMEOUT:
            self._fail(grpc.StatusCode.UNAVAILABLE, "a ping was not answered")
        if self._pinged_at is None and now - max(self._sent_at, self._heard_at) > _PING_AFTER:
            self._pinged_at = now
            self._http2.answers += http2.frame(http2.PING, 0, 0, bytes(8))
            self._answer()

    def _fail(self, code: grpc.StatusCode, details: str) -> NoReturn:
        """The end, unless it has come before."""
        if self._end is None:
            self._end = CallEnded(code, details)
        raise _OverError

    # --- sending

    def _write_message(self, message: list[memoryview]) -> None:
        while message:
            frames = self._http2.cut(message)
            if frames:
                self._write([piece for frame in frames for piece in frame])
            elif self._http2.has_message:
                self._fail(grpc.StatusCode.INTERNAL, "the server spoke out of turn")
            else:
                self._step(wait=True)

    def _answer(self) -> None:
        """Send what the connection itself has to say."""
        said, self._http2.answers = self._http2.answers, bytearray()
        self._write_small(bytes(said))
        self._sent_at = time.monotonic()

    def _write_small(self, data: bytes) -> None:
        assert self._socket is not None
        if self._is_broken:
            return
        try:
            sent = self._socket.send(data)
        except OSError as error:
            self._hung_up(error)
        if sent < len(data):
            self._write([memoryview(data)[sent:]])

    def _write(self, views: list[memoryview]) -> None:
        assert self._socket is not None
        if self._is_broken:
            return
        left = sum(view.nbytes for view in views)
        if len(views) > 2:
            views[:2] = [memoryview(b"".join(views[:2]))]  # two small ones
        try:
            while True:
                sent = self._socket.sendmsg(views)
                left -= sent
                if not left:
                    break
                http2.take(views, sent)
        except OSError as error:
            self._hung_up(error)
        self._sent_at = time.monotonic()

    def _hung_up(self, error: OSError) -> NoReturn:
        """Nothing can be written; the server may have said why before it hung up."""
        self._is_broken = True
        while not self._http2.has_message and self._step(wait=False):
            pass
        self._broken(error)

    # --- receiving

    def _step(self, *, wait: bool) -> bool:
        """Read once, and act on what is complete; False when nothing had come. Raises _OverError when it is the end."""
        connection = self._http2
        try:
            # First what came with the message before.
            heard = (connection.has_more and connection.received(0)) or connection.received(self._read(wait=wait))
        except ForeignHeadersError as error:
            self.is_foreign = True
            self._fail(grpc.StatusCode.UNAVAILABLE, f"the path to the server uses {error}")
        except ProtocolError as error:
            is_too_large = isinstance(error, BadMessageError) and error.is_too_large
            self._fail(grpc.StatusCode.RESOURCE_EXHAUSTED if is_too_large else grpc.StatusCode.INTERNAL, str(error))
        if connection.answers:
            self._answer()
        return heard

    def _read(self, *, wait: bool) -> int:
        assert self._socket is not None
        space = self._http2.space()
        # The rest of a frame is on its way: one call for all of it.
        flags = (socket.MSG_WAITALL if self._http2.reads_directly else 0) if wait else socket.MSG_DONTWAIT
        try:
            got = self._socket.recv_into(space, 0, flags)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._broken(error)
        if got == 0:
            self._broken(None)
        return got

    def _broken(self, error: OSError | None) -> NoReturn:
        if self._cancelled:
            self._fail(grpc.StatusCode.CANCELLED, "cancelled")
        self._fail(grpc.StatusCode.UNAVAILABLE, f"the connection broke: {error if error is not None else 'it ended'}")

    # --- what the server says beside messages (http2.Listener)

    def headers(self, stream: int, headers: Mapping[str, bytes], *, last: bool) -> None:
        """The beginning of the answer, or the call's end."""
        if stream != _STREAM:
            return
        status = headers.get(":status", b"200")
        if "grpc-status" in headers:
            code = _CODES.get(headers["grpc-status"], grpc.StatusCode.UNKNOWN)
            message = unquote(headers.get("grpc-message", b"").decode("ascii", "replace"))
            trailers = [Entry(key, _binary(value)) for key, value in headers.items() if key.endswith("-bin")]
            if self._end is None:
                self._end = CallEnded(code, message, tuple(trailers))
            raise _OverError
        if self._expected and headers.get(_INCARNATION) != self._expected:
            self._fail(grpc.StatusCode.UNAVAILABLE, "somebody else accepted the call")
        if status != b"200":
            self._fail(_OF_HTTP.get(status, grpc.StatusCode.UNKNOWN), f"HTTP status {status.decode('latin-1')}")
        if last:
            self.half_closed()
        self._is_accepted = True

    def half_closed(self) -> None:
        """The server ends a call with a status, or not at all."""
        self._fail(grpc.StatusCode.INTERNAL, "the stream ended without a status")

    def reset(self, stream: int, code: int) -> None:
        """The server ended the call at once."""
        if stream == _STREAM:
            self._fail(_OF_RESET.get(code, grpc.StatusCode.INTERNAL), f"the stream was reset, code {code}")

    def going_away(self, last_stream: int, text: bytes) -> None:
        """The server takes no more calls."""
        if last_stream < _STREAM:
            self._fail(grpc.StatusCode.UNAVAILABLE, f"the server took no more calls: {text!r}")

    def pong(self) -> None:
        """The server is there."""
        self._pinged_at = None


def _addresses(address: str) -> list[tuple[socket.AddressFamily, Any]]:
    """What to connect to, in this order. Raises OSError when the name is not known."""
    if address.startswith("unix:"):
        return [(socket.AF_UNIX, address.removeprefix("unix:"))]
    host, _, port = address.rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    return [(family, name) for family, _, _, _, name in found]


def _binary(value: bytes) -> bytes:
    """A value of binary metadata: as it is behind a zero, or base64 (PROTOCOL-HTTP2.md; with and without padding)."""
    if value[:1] == b"\0":
        return value[1:]
    try:
        return base64.b64decode(value + b"=" * (-len(value) % 4))
    except ValueError:
        return b""
