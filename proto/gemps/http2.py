"""One gRPC call at a time on a plain HTTP/2 connection, without I/O: bytes in, messages and what else is said out.

Both ends of the Commit call use it: the worker's (direct_call.py) and the server's (commit_port). gRPC's Python library
hands each message through other threads or an event loop of its own, and copies its bytes two to three times each way;
the Commit call moves the whole model both ways at every step, and for a small model it is the step. What is spoken is
RFC 9113 (HTTP/2) and gRPC's PROTOCOL-HTTP2.md, so that either end may as well be gRPC's own library.

TCP is the flow control: with one call on a connection, whoever does not read stops the peer by that.
"""

import struct
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from gemps.framing import SMALL_BYTES, Buffer
from gemps.header_block import UnknownEncodingError, read_headers

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

# Types of frames, their flags and settings: RFC 9113, sections 6 and 7. The last setting is gRPC's own: binary
# metadata may come as it is.
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, PRIORITY = 0x4, 0x8, 0x20
_TABLE_SIZE, _ENABLE_PUSH, _MOST_STREAMS, _INITIAL_WINDOW, _MAX_FRAME, _TRUE_BINARY = 1, 2, 3, 4, 5, 0xFE03
# Why a stream or a connection ends: RFC 9113, section 7.
NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR = 0, 1, 3, 7, 8, 9
FRAME_HEADER = 9
# What either side may send before it has heard of the other's settings.
_DEFAULT_WINDOW, _DEFAULT_FRAME = 65_535, 16_384
_LARGEST_FRAME = (1 << 24) - 1
_LARGEST_WINDOW = (1 << 31) - 1
_PREFIX = 5  # before each message of gRPC: whether it is compressed, and its size
_FRAME = struct.Struct(">BHBBI")  # a frame's header: length (three bytes), type, flags, stream
_MESSAGE = struct.Struct(">BI")  # a message's prefix
_FRAME_AND_MESSAGE = struct.Struct(">BHBBIBI")

# The rest of a frame of data is read to where it belongs, if it has at least so many bytes.
_READ_DIRECTLY = 16 << 10


# Where the end of a message goes: told its first bytes and its size, how many of them are its beginning, and memory for
# all that follows; None: where messages always go.
Place: TypeAlias = Callable[[memoryview, int], tuple[int, memoryview] | None]


class ProtocolError(Exception):
    """The peer says what it must not. `code`: what HTTP/2 calls it."""

    def __init__(self, message: str, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(message)
        self.code = code


class BadMessageError(ProtocolError):
    """The peer begins a message that cannot be taken, so that what follows of the call makes no sense.

    `is_too_large`: it has more bytes than it may have; else it is compressed.
    """

    def __init__(self, message: str, *, is_too_large: bool) -> None:
        super().__init__(message)
        self.is_too_large = is_too_large


class ForeignHeadersError(ProtocolError):
    """A header block in an encoding that only a whole implementation of HPACK reads."""

    def __init__(self, error: UnknownEncodingError) -> None:
        super().__init__(f"headers with {error}", COMPRESSION_ERROR)


class Listener(Protocol):
    """Who is told what the peer says beside messages. What it raises goes through `received`, which may go on later."""

    def headers(self, stream: int, headers: Mapping[str, bytes], *, last: bool) -> None:
        """A header block came; `last`: with it the peer ends its side of the stream."""

    def half_closed(self) -> None:
        """The peer has sent its last message."""

    def reset(self, stream: int, code: int) -> None:
        """The peer ended a stream at once."""

    def going_away(self, last_stream: int, text: bytes) -> None:
        """The peer takes no stream after `last_stream`."""

    def pong(self) -> None:
        """The peer answered a ping."""


class Http2:
    """One end of a connection.

    Args:
        listener: who is told.
        limit: bytes that a message of the peer may have.
        window: bytes that the peer may send before it is told to go on.
        buffer_bytes: for small frames, and for what comes with them. A larger frame is an error, but for data.
        spare: memory for messages that several connections share; whoever needs some takes it out of there.

    Attributes:
        stream: the call's; 0: there is none. Data of any other one is passed over.
        wants_data: whether messages are wanted; if not, what is said up to the next frame of data is heard, no further,
            also while there is a message.
        has_message: whether there is a whole one.
        place: asked for each large message, when enough of it has come.
        reads_directly: whether the last `space` is only for the rest of a frame of data that has begun to come.
        answers: frames that have to be sent before anything else.
    """

    def __init__(
        self,
        listener: Listener,
        *,
        limit: int,
        window: int,
        buffer_bytes: int,
        spare: deque[memoryview] | None = None,
    ) -> None:
        self.stream = 0
        self.wants_data = True
        self.has_message = False
        self.place: Place | None = None
        self.reads_directly = False
        self.answers = bytearray()
        self._listener = listener
        self._spare: deque[memoryview] = spare if spare is not None else deque()
        self._limit = limit
        # Receiving: bytes [_start, _stop) of the buffer are not read yet.
        self._buffer = memoryview(bytearray(buffer_bytes))
        self._start = self._stop = 0
        self._frame_left = self._padding_left = 0  # of the frame of data being read
        self._frame_counts = False  # whether it belongs to the call
        self._frame_ends_stream = False
        self._headers: bytearray | None = None  # a block that is not whole
        self._headers_stream = 0
        self._headers_last = False
        self._our_window = window
        self._unacknowledged = 0
        # The message being received: its prefix, then itself, in this end's memory or, but for its beginning, in that
        # of whoever wants it elsewhere.
        self._prefix = bytearray()
        self._memory = self._message = memoryview(b"")
        self._size = self._received = 0
        self._may_be_placed = False
        # Sending.
        self._window = self._stream_window = self._initial_window = _DEFAULT_WINDOW
        self._max_frame = _DEFAULT_FRAME

    # --- beginning and ending

    def begin(self) -> None:
        """Say, as the first thing after a client's preface, what this end takes."""
        ours = {
            _TABLE_SIZE: 0,
            _ENABLE_PUSH: 0,
            _MOST_STREAMS: 1,
            _INITIAL_WINDOW: self._our_window,
            _MAX_FRAME: _LARGEST_FRAME,
            _TRUE_BINARY: 1,
        }
        self.answers += frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *one) for one in ours.items()))
        self.answers += frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._our_window - _DEFAULT_WINDOW))

    def open(self, stream: int) -> None:
        """The call is this stream from now on; 0: it is over."""
        self.stream = stream
        self._stream_window = self._initial_window
        self._frame_counts = self._frame_ends_stream = False
        self.release()
        self.forget_memory()

    # --- receiving

    def space(self) -> memoryview:
        """Where the next bytes of the peer go; empty while the buffer is full of what `received` has not taken yet."""
        start, stop = self._start, self._stop
        self.reads_directly = False
        if start == stop:
            room = min(self._frame_left, self._size - self._received)
            # Without a whole prefix there is no message yet, and no room in it.
            if room >= _READ_DIRECTLY and self._frame_counts:
                self.reads_directly = True
                return self._message[self._received : self._received + room]
            self._start = self._stop = 0
        elif start:
            left = bytes(self._buffer[start:stop])
            self._buffer[: len(left)] = left
            self._start, self._stop = 0, len(left)
        return self._buffer[self._stop :]

    @property
    def has_more(self) -> bool:
        """Whether `received(0)` may find something that it has not acted on."""
        return self._start != self._stop or self._frame_ends_stream

    def received(self, count: int) -> bool:
        """So many bytes were put into `space`: act on them, as far as is wanted; whether there was anything.

        Raises ProtocolError, and what the listener raises.
        """
        if count and self.reads_directly:
            self._received += count
            self._frame_left -= count
            if self._received < self._size and self._frame_left:
                return True
            self._message_progressed()
        else:
            self._stop += count
        begin, found = self._start, count
        while not (self.has_message and self.wants_data):
            available = self._stop - self._start
            if self._frame_left:
                if self.has_message or not available:
                    break
                self._take_data(min(available, self._frame_left))
            elif self._padding_left:
                if not available:
                    break
                skipped = min(available, self._padding_left)
                self._start += skipped
                self._padding_left -= skipped
            elif self._frame_ends_stream:
                self._frame_ends_stream = False
                self._listener.half_closed()
            elif available < FRAME_HEADER or not self._take_frame(available):
                break
        return found > 0 or self._start > begin

    @property
    def message(self) -> memoryview:
        """The message that is there (`has_message`), or what of it was placed elsewhere; valid until `release`."""
        return self._message[: self._size]

    def release(self) -> None:
        """The message has been read."""
        self._prefix.clear()
        self._size = self._received = 0
        self.has_message = False

    def forget_memory(self) -> None:
        """Unless a message has begun, let others have its memory."""
        if self._memory.nbytes and not self._prefix:
            self._spare.append(self._memory)
            self._memory = self._message = memoryview(b"")

    def displace(self) -> None:
        """A message that has begun to come to a place goes on elsewhere: that memory is not to be written any more."""
        if self._message.obj is self._memory.obj or self.has_message:
            return
        memory = memoryview(bytearray(self._size))
        memory[: self._received] = self._message[: self._received]
        self._message = memory

    def _take_frame(self, available: int) -> bool:
        """The frame at the buffer's start, if enough of it is there."""
        high, low, kind, flags, stream = _FRAME.unpack_from(self._buffer, self._start)
        length = high << 16 | low
        stream &= 0x7FFFFFFF
        if kind == DATA:
            if not self.wants_data:
                return False
            if not flags and 0 < stream == self.stream and available >= FRAME_HEADER + length and not self._prefix:
                return self._take_small_message(length) or self._begin_data(available, length, flags, stream)
            return self._begin_data(available, length, flags, stream)
        if length > len(self._buffer) - FRAME_HEADER:
            raise ProtocolError(f"a frame of type {kind} and {length} bytes")
        if available < FRAME_HEADER + length:
            return False
        self._start += FRAME_HEADER
        payload = bytes(self._buffer[self._start : self._start + length])
        self._start += length
        try:
            self._control(kind, flags, stream, payload)
        except (IndexError, struct.error, ValueError):
            raise ProtocolError(f"a frame of type {kind} that makes no sense") from None
        return True

    def _take_small_message(self, length: int) -> bool:
        """The message that is all of the frame at the buffer's start, if it is so; most small ones are."""
        begin = self._start + FRAME_HEADER
        if not _PREFIX <= length <= _READ_DIRECTLY:
            return False
        compressed, size = _MESSAGE.unpack_from(self._buffer, begin)
        if compressed or size != length - _PREFIX or size > self._limit:
            return False
        self._start = begin + length
        self._message = memoryview(bytes(self._buffer[begin + _PREFIX : self._start]))
        self._size = self._received = size
        self.has_message = True
        self._acknowledge(length)
        return True

    def _begin_data(self, available: int, length: int, flags: int, stream: int) -> bool:
        padded = 1 if flags & PADDED else 0
        if available < FRAME_HEADER + padded:
            return False
        padding = self._buffer[self._start + FRAME_HEADER] if padded else 0
        # Of a stream that is over some may still be on its way.
        if not 0 < stream <= max(self.stream, self._headers_stream) or length < padded + padding:
            raise ProtocolError("a frame of data that was not asked for")
        self._start += FRAME_HEADER + padded
        self._frame_left, self._padding_left = length - padded - padding, padding
        self._frame_counts = stream == self.stream
        self._frame_ends_stream = self._frame_counts and bool(flags & END_STREAM)
        self._acknowledge(length)
        return True

    def _take_data(self, count: int) -> None:
        """`count` bytes of a frame of data, or as many of them as the message still takes."""
        if not self._frame_counts:
            took = count
        elif len(self._prefix) < _PREFIX:
            took = min(count, _PREFIX - len(self._prefix))
            self._prefix += self._buffer[self._start : self._start + took]
            if len(self._prefix) == _PREFIX:
                self._begin_message()
        else:
            if self._may_be_placed and not self._received:
                count -= self._place_message(count)
            took = min(count, self._size - self._received)
            self._message[self._received : self._received + took] = self._buffer[self._start : self._start + took]
            self._received += took
        self._start += took
        self._frame_left -= took
        self._message_progressed()

    def _begin_message(self) -> None:
        compressed, size = _MESSAGE.unpack(self._prefix)
        if compressed:
            raise BadMessageError("a compressed message, which was not asked for", is_too_large=False)
        if size > self._limit:
            raise BadMessageError(f"a message of {size} bytes, more than {self._limit}", is_too_large=True)
        self._size = size
        self._may_be_placed = self.place is not None and size >= _READ_DIRECTLY
        if size > self._memory.nbytes:
            if self._spare:
                self._memory = self._spare.pop()
            if size > self._memory.nbytes:
                self._memory = memoryview(bytearray(size))
        self._message = self._memory

    def _place_message(self, count: int) -> int:
        """Let the message go where it is wanted; returns how many of its first `count` bytes have been used up."""
        self._may_be_placed = False
        begin = self._buffer[self._start : self._start + count]
        placed = self.place(begin, self._size) if self.place is not None else None
        if placed is None:
            return 0
        used, self._message = placed
        self._size -= used
        self._start += used
        self._frame_left -= used
        return used

    def _message_progressed(self) -> None:
        self.has_message = len(self._prefix) == _PREFIX and self._received == self._size

    def _acknowledge(self, length: int) -> None:
        self._unacknowledged += length
        if self._unacknowledged >= self._our_window // 4:
            more = struct.pack(">I", self._unacknowledged)
            self._unacknowledged = 0
            self.answers += frame(WINDOW_UPDATE, 0, 0, more)
            if self.stream:
                self.answers += frame(WINDOW_UPDATE, 0, self.stream, more)

    def _control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._headers is not None and kind != CONTINUATION:
            raise ProtocolError("a header block that is torn")
        if kind == SETTINGS:
            if not flags & ACK:
                self._take_settings(payload)
                self.answers += frame(SETTINGS, ACK, 0)
        elif kind == PING:
            if flags & ACK:
                self._listener.pong()
            else:
                self.answers += frame(PING, ACK, 0, payload)
        elif kind == WINDOW_UPDATE:
            self._take_window(stream, int.from_bytes(payload[:4], "big") & 0x7FFFFFFF)
        elif kind == GOAWAY:
            self._listener.going_away(int.from_bytes(payload[:4], "big") & 0x7FFFFFFF, payload[8:200])
        elif kind == RESET:
            self._listener.reset(stream, int.from_bytes(payload[:4], "big"))
        elif kind in (HEADERS, CONTINUATION):
            self._take_headers(kind, flags, stream, payload)

    def _take_window(self, stream: int, more: int) -> None:
        if stream == 0:
            self._window += more
        elif stream == self.stream:
            self._stream_window += more
        if max(self._stream_window, self._window) > _LARGEST_WINDOW:
            raise ProtocolError("a window that is too large", FLOW_CONTROL_ERROR)

    def _take_settings(self, payload: bytes) -> None:
        for key, value in struct.iter_unpack(">HI", payload):
            if key == _INITIAL_WINDOW:
                if value > _LARGEST_WINDOW:
                    raise ProtocolError("a window that is too large", FLOW_CONTROL_ERROR)
                self._stream_window += value - self._initial_window
                self._initial_window = value
            elif key == _MAX_FRAME and _DEFAULT_FRAME <= value <= _LARGEST_FRAME:
                self._max_frame = value

    def _take_headers(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == HEADERS:
            padding = payload[0] if flags & PADDED else 0
            begin = (1 if flags & PADDED else 0) + (5 if flags & PRIORITY else 0)
            self._headers = bytearray(payload[begin : len(payload) - padding])
            self._headers_stream = stream
            self._headers_last = bool(flags & END_STREAM)
        elif self._headers is None or len(self._headers) + len(payload) > len(self._buffer):
            raise ProtocolError("a header block without a beginning, or without an end")
        elif stream != self._headers_stream:
            raise ProtocolError("a header block that goes on in another stream")
        else:
            self._headers += payload
        if not flags & END_HEADERS:
            return
        block, self._headers = bytes(self._headers), None
        try:
            headers = read_headers(block)
        except UnknownEncodingError as error:
            raise ForeignHeadersError(error) from None
        self._listener.headers(self._headers_stream, headers, last=self._headers_last)

    # --- sending

    def frame_of(self, *message: Buffer) -> bytes | None:
        """A small message, in pieces of bytes, as one frame of data; None: it is not small, or may not be sent so now.

        It is for `cut` then.
        """
        size = sum(map(len, message))
        counted = size + _PREFIX
        if size > SMALL_BYTES or counted > min(self._window, self._stream_window, self._max_frame):
            return None
        self._window -= counted
        self._stream_window -= counted
        head = _FRAME_AND_MESSAGE.pack(counted >> 16, counted & 0xFFFF, DATA, 0, self.stream, 0, size)
        return b"".join((head, *message))

    def cut(self, message: list[memoryview]) -> list[list[memoryview]]:
        """Frames of data for as much of a message as may be sent at this moment.

        A frame is a list of pieces. What they hold is taken out of `message`, pieces that `pieces_of` made. Empty: the
        peer has to open its window first.
        """
        frames = []
        while message and (room := min(self._window, self._stream_window, self._max_frame)) > 0:
            part = take(message, room)
            size = sum(piece.nbytes for piece in part)
            self._window -= size
            self._stream_window -= size
            frames.append([memoryview(frame_header(size, DATA, 0, self.stream)), *part])
        return frames

    def put_back(self, frames: list[list[memoryview]]) -> None:
        """Whole frames that `cut` made, and that are not sent, as their call is over: the next one has their room."""
        self._window += sum(piece.nbytes for one in frames for piece in one[1:])


def prefix(size: int) -> bytes:
    """What goes before a message of so many bytes."""
    return _MESSAGE.pack(0, size)


def frame_header(length: int, kind: int, flags: int, stream: int) -> bytes:
    """What goes before a frame's payload."""
    return _FRAME.pack(length >> 16, length & 0xFFFF, kind, flags, stream)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A small frame."""
    return frame_header(len(payload), kind, flags, stream) + payload


def pieces_of(message: tuple[Buffer, ...]) -> list[memoryview]:
    """A message as `Http2.cut` takes it."""
    pieces = [memoryview(piece).cast("B") for piece in message if len(piece)]
    pieces.insert(0, memoryview(prefix(sum(piece.nbytes for piece in pieces))))
    return pieces


def take(views: list[memoryview], count: int) -> list[memoryview]:
    """Remove the first `count` bytes from `views`, or as many as there are, and return them."""
    taken = []
    while count and views:
        first = views[0]
        if first.nbytes <= count:
            taken.append(views.pop(0))
            count -= first.nbytes
        else:
            taken.append(first[:count])
            views[0] = first[count:]
            count = 0
    return taken
