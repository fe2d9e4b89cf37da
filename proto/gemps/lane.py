"""The lane's protocol, without I/O: frames in and out, and the state that says which frame is legal (lane.proto).

Both ends use `Lane`: the server's `lane_connection.py` and the worker's `lane_call.py`, which own the sockets. Bytes of
the peer go into `space()`; `received()` counts them; `next_frame()` gives frames until there are none. A MESSAGE that
does not fit into the buffer is given as soon as its beginning is there; its reader takes the `missing` bytes from the
socket to where they belong, and says so to `skip()`.

Nothing here knows what a MESSAGE means. Code that reads or writes a MESSAGE that passes the turn calls `enter`.
"""

import struct
from collections.abc import Mapping
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import NamedTuple

from gemps.framing import SMALL_BYTES

MAGIC = b"gemps-lane"
VERSION = 1
HEADER_BYTES = 5
_HEADER = struct.Struct("<IB")


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 1
    WELCOME = 2
    MESSAGE = 3
    END = 4
    CANCEL = 5
    PING = 6
    PONG = 7


class State(IntEnum):
    """Of a connection; lane.proto says when it changes."""

    HELLO = 0
    IDLE = 1
    COMMITTING = 2
    REPLYING = 3
    CLOSED = 4


class Side(Enum):
    """Whose end of the connection it is."""

    WORKER = "worker"
    SERVER = "server"


class Rule(NamedTuple):
    """A frame that is legal in some state: the state that it leads to, and the sizes that it may have."""

    after: State
    least: int = 0
    most: int = 0


Table = Mapping[State, Mapping[int, Rule]]

HELLO_BYTES = 4096
# A chunk of 2 MiB and what is said of it: parameter_server.proto.
MESSAGE_BYTES = (2 << 20) + (64 << 10)
# A MESSAGE that begins a commit: the header, or a whole commit of at most 64 KiB.
FIRST_MESSAGE_BYTES = SMALL_BYTES
_CANCEL = Rule(State.CLOSED)
_END = Rule(State.CLOSED, 0, 8192)
# Frames that each side may send in each state.
FROM_WORKER: Table = MappingProxyType(
    {
        State.HELLO: {Kind.HELLO: Rule(State.HELLO, 1, HELLO_BYTES)},
        State.IDLE: {
            Kind.MESSAGE: Rule(State.REPLYING, 1, FIRST_MESSAGE_BYTES),
            Kind.PING: Rule(State.IDLE, 8, 8),
            Kind.CANCEL: _CANCEL,
        },
        State.COMMITTING: {Kind.MESSAGE: Rule(State.COMMITTING, 1, MESSAGE_BYTES), Kind.CANCEL: _CANCEL},
        State.REPLYING: {Kind.CANCEL: _CANCEL},
        State.CLOSED: {},
    }
)
FROM_SERVER: Table = MappingProxyType(
    {
        State.HELLO: {Kind.WELCOME: Rule(State.IDLE, 0, 4096), Kind.END: _END},
        State.IDLE: {Kind.PONG: Rule(State.IDLE, 8, 8), Kind.END: _END},
        State.COMMITTING: {Kind.END: _END},
        State.REPLYING: {
            Kind.MESSAGE: Rule(State.REPLYING, 1, MESSAGE_BYTES),
            Kind.PONG: Rule(State.REPLYING, 8, 8),
            Kind.END: _END,
        },
        State.CLOSED: {},
    }
)
# States that a MESSAGE leads to when it says so: proceed, or a footer.
TURNS: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        State.REPLYING: frozenset({State.COMMITTING, State.IDLE}),
        State.COMMITTING: frozenset({State.REPLYING}),
    }
)
# A larger MESSAGE need not fit into the receiver's buffer: its chunk's data begins within HEAD_BYTES.
BUFFERED_BYTES = 16 << 10
HEAD_BYTES = 1 << 10


class IllegalFrameError(Exception):
    """The peer sent a frame that the state does not allow, or of an impossible size. The connection ends."""


class Frame(NamedTuple):
    """One frame of a `Kind`. `body` is valid until `space` is called; of a large MESSAGE it is the beginning."""

    kind: int
    body: memoryview
    size: int


class Lane:
    """One end of a connection.

    Args:
        side: this end's.
        buffer_bytes: memory for what the peer sends; the first frame of the peer must fit.

    Attributes:
        state: of the connection, as far as this end knows.
        missing: bytes of the current MESSAGE that are not in the buffer, for its reader to take from the socket.
    """

    def __init__(self, side: Side, buffer_bytes: int) -> None:
        self.missing = 0
        server = side is Side.SERVER
        self._incoming, self._outgoing = (FROM_WORKER, FROM_SERVER) if server else (FROM_SERVER, FROM_WORKER)
        self._buffer = memoryview(bytearray(buffer_bytes))
        self._start = self._stop = 0
        self.state = State.HELLO

    def grow(self, buffer_bytes: int) -> None:
        """Use a larger buffer from now on."""
        buffer = memoryview(bytearray(buffer_bytes))
        count = self._stop - self._start
        buffer[:count] = self._buffer[self._start : self._stop]
        self._buffer, self._start, self._stop = buffer, 0, count

    @property
    def buffered(self) -> int:
        """Bytes of the peer that belong to no frame yet."""
        return self._stop - self._start

    def space(self) -> memoryview:
        """Where the peer's next bytes go."""
        if self._start == self._stop:
            self._start = self._stop = 0
        elif self._stop == len(self._buffer):
            left = bytes(self._buffer[self._start : self._stop])
            self._buffer[: len(left)] = left
            self._start, self._stop = 0, len(left)
        return self._buffer[self._stop :]

    def received(self, count: int) -> None:
        """`count` bytes of the peer are in `space()`."""
        self._stop += count

    def next_frame(self) -> Frame | None:
        """The next frame, None when more bytes are needed. Raises IllegalFrameError."""
        available = self._stop - self._start - HEADER_BYTES
        if available < 0:
            return None
        size, number = _HEADER.unpack_from(self._buffer, self._start)
        begin = self._start + HEADER_BYTES
        rule = self._incoming[self.state].get(number)
        if rule is None:
            raise IllegalFrameError(f"a frame of kind {number} in state {self.state.name}")
        after, least, most = rule
        if self.state is State.IDLE:  # a commit begins with a message that fits
            most = min(most, len(self._buffer) - HEADER_BYTES)
        if not least <= size <= most:
            raise IllegalFrameError(f"a frame of kind {number} with {size} bytes in state {self.state.name}")
        if available >= size:
            self._start = begin + size
        elif size + HEADER_BYTES <= len(self._buffer):
            return None
        elif available >= HEAD_BYTES:
            self.missing = size - available
            self._start = self._stop
        else:
            return None
        self.state = after
        return Frame(number, self._buffer[begin : self._start], size)

    def skip(self, count: int) -> None:
        """`count` of the missing bytes went elsewhere."""
        self.missing -= count

    def header(self, kind: Kind, size: int) -> bytes:
        """What goes before the `size` bytes of a frame that this end sends now."""
        rule = self._outgoing[self.state].get(kind)
        if rule is None:
            raise AssertionError(f"{kind.name} in state {self.state.name}")
        self.state = rule.after
        return _HEADER.pack(size, kind)

    def enter(self, state: State) -> None:
        """The MESSAGE that was just received or sent passes the turn."""
        if state not in TURNS.get(self.state, ()):
            raise AssertionError(f"from {self.state.name} to {state.name}")
        self.state = state

    def close(self) -> None:
        """Nothing is legal any more."""
        self.state = State.CLOSED
