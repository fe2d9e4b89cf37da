"""The lane's protocol, without I/O: frames in and out, and the state that says which frame is legal (lane.proto).

Both ends use `Lane`: the server's `lane_connection.py` and the worker's `lane_call.py`, which own the sockets. Bytes of
the peer go into `space()`; `received()` counts them; `next_frame()` gives frames until there are none. A MESSAGE that
does not fit into the buffer is given as soon as its beginning is there; its reader takes the `missing` bytes from the
socket to where they belong, and says so to `skip()`.

Nothing here knows what a MESSAGE means. Whoever reads or writes one that passes the turn calls `enter`.
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


class State(Enum):
    """Of a connection; lane.proto says when it changes."""

    HELLO = "hello"
    IDLE = "idle"
    COMMITTING = "committing"
    REPLYING = "replying"
    CLOSED = "closed"


class Side(Enum):
    """Whose end of the connection it is."""

    WORKER = "worker"
    SERVER = "server"


Table = Mapping[State, frozenset[Kind]]

# Frames that each side may send in each state.
FROM_WORKER: Table = MappingProxyType(
    {
        State.HELLO: frozenset({Kind.HELLO}),
        State.IDLE: frozenset({Kind.MESSAGE, Kind.PING, Kind.CANCEL}),
        State.COMMITTING: frozenset({Kind.MESSAGE, Kind.CANCEL}),
        State.REPLYING: frozenset({Kind.CANCEL}),
        State.CLOSED: frozenset(),
    }
)
FROM_SERVER: Table = MappingProxyType(
    {
        State.HELLO: frozenset({Kind.WELCOME, Kind.END}),
        State.IDLE: frozenset({Kind.PONG, Kind.END}),
        State.COMMITTING: frozenset({Kind.END}),
        State.REPLYING: frozenset({Kind.MESSAGE, Kind.PONG, Kind.END}),
        State.CLOSED: frozenset(),
    }
)
# States that a MESSAGE can lead to, depending on what it says; IDLE leads to REPLYING by itself.
TURNS: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        State.REPLYING: frozenset({State.COMMITTING, State.IDLE}),
        State.COMMITTING: frozenset({State.REPLYING}),
    }
)
# Smallest and largest frames. A chunk of 2 MiB and what is said of it: parameter_server.proto.
MESSAGE_BYTES = (2 << 20) + (64 << 10)
HELLO_BYTES = 4096
SIZES: Mapping[int, tuple[int, int]] = MappingProxyType(
    {
        Kind.HELLO: (1, HELLO_BYTES),
        Kind.WELCOME: (0, 4096),
        Kind.MESSAGE: (1, MESSAGE_BYTES),
        Kind.END: (0, 8192),
        Kind.CANCEL: (0, 0),
        Kind.PING: (8, 8),
        Kind.PONG: (8, 8),
    }
)
# A MESSAGE that begins a commit: the header, or a whole commit of at most 64 KiB.
FIRST_MESSAGE_BYTES = SMALL_BYTES
# A larger MESSAGE need not fit into the receiver's buffer; its chunk's data begins within HEAD_BYTES.
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
        self._move(State.HELLO)

    def grow(self, buffer_bytes: int) -> None:
        """Use a larger buffer from now on."""
        buffer = memoryview(bytearray(buffer_bytes))
        count = self._stop - self._start
        buffer[:count] = self._buffer[self._start : self._stop]
        self._buffer, self._start, self._stop = buffer, 0, count

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
        if number not in self._legal:
            raise IllegalFrameError(f"a frame of kind {number} in state {self.state.name}")
        least, most = SIZES[number]
        if number == Kind.MESSAGE and self.state is State.IDLE:
            most = min(FIRST_MESSAGE_BYTES, len(self._buffer) - HEADER_BYTES)
        if not least <= size <= most:
            raise IllegalFrameError(f"a frame of kind {number} with {size} bytes in state {self.state.name}")
        if available >= size:
            self._start = begin + size
        elif size + HEADER_BYTES > len(self._buffer) and available >= HEAD_BYTES:
            self.missing = size - available
            self._start = self._stop
        else:
            return None
        self._passed(number)
        return Frame(number, self._buffer[begin : self._start], size)

    def skip(self, count: int) -> None:
        """`count` of the missing bytes went elsewhere."""
        self.missing -= count

    def header(self, kind: Kind, size: int) -> bytes:
        """What goes before the `size` bytes of a frame that this end sends now."""
        if kind not in self._sendable:
            raise AssertionError(f"{kind.name} in state {self.state.name}")
        self._passed(kind)
        return _HEADER.pack(size, kind)

    def enter(self, state: State) -> None:
        """The MESSAGE that was just received or sent passes the turn."""
        if state not in TURNS.get(self.state, ()):
            raise AssertionError(f"from {self.state.name} to {state.name}")
        self._move(state)

    def close(self) -> None:
        """Nothing is legal any more."""
        self._move(State.CLOSED)

    def _passed(self, kind: int) -> None:
        if kind == Kind.MESSAGE:
            if self.state is State.IDLE:
                self._move(State.REPLYING)
        elif kind == Kind.WELCOME:
            self._move(State.IDLE)
        elif kind in (Kind.END, Kind.CANCEL):
            self._move(State.CLOSED)

    def _move(self, state: State) -> None:
        self.state = state
        self._legal, self._sendable = self._incoming[state], self._outgoing[state]
