"""The lane's protocol (lane.proto) without I/O.

Write received bytes into `space`, and call `next_frame()` with their number, and then without one while it `has_more`.
A MESSAGE that is larger than the buffer is returned once its beginning is there. Its reader then reads the `missing`
bytes from the socket, and counts them down.

Whenever a MESSAGE passes the turn, call `enter`. A worker's MESSAGE in REPLYING is not returned before this call. Until
then the lane `is_blocked`, and nothing should be read.
"""

import struct
from collections.abc import Mapping
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import NamedTuple

from gemps.limits import END_BYTES, FIRST_MESSAGE_BYTES, HELLO_BYTES, MESSAGE_BYTES

MAGIC = b"gemps-lane"
VERSION = 1
HEADER_BYTES = 5
_HEADER = struct.Struct("<IB")


class Kind(IntEnum):
    """Says what a frame is for."""

    HELLO = 1
    WELCOME = 2
    MESSAGE = 3
    END = 4
    CANCEL = 5
    PING = 6
    PONG = 7


class State(IntEnum):
    """Says which frames are legal on the connection now."""

    HELLO = 0
    IDLE = 1
    COMMITTING = 2
    REPLYING = 3
    CLOSED = 4


class Side(Enum):
    """Says which of the two peers a connection object belongs to."""

    WORKER = "worker"
    SERVER = "server"


class Rule(NamedTuple):
    """A frame that is legal in a state."""

    after: State
    least: int = 0
    most: int = 0


Table = Mapping[State, Mapping[int, Rule]]

_CANCEL = Rule(State.CLOSED)
_END = Rule(State.CLOSED, 0, END_BYTES)
# A worker may send its next MESSAGE early. The server reads it in the state that follows, by that state's rules.
_BLOCKED = Rule(State.REPLYING, 1, MESSAGE_BYTES)
FROM_WORKER: Table = MappingProxyType(
    {
        State.HELLO: {Kind.HELLO: Rule(State.HELLO, 1, HELLO_BYTES)},
        State.IDLE: {
            Kind.MESSAGE: Rule(State.REPLYING, 1, FIRST_MESSAGE_BYTES),
            Kind.PING: Rule(State.IDLE, 8, 8),
            Kind.CANCEL: _CANCEL,
        },
        State.COMMITTING: {Kind.MESSAGE: Rule(State.COMMITTING, 1, MESSAGE_BYTES), Kind.CANCEL: _CANCEL},
        State.REPLYING: {Kind.CANCEL: _CANCEL, Kind.MESSAGE: _BLOCKED},
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
# The states that follow a message with proceed, or one with a footer.
TURNS: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        State.REPLYING: frozenset({State.COMMITTING, State.IDLE}),
        State.COMMITTING: frozenset({State.REPLYING}),
    }
)
# A MESSAGE larger than this need not fit into the buffer. The data of its chunk begins within HEAD_BYTES.
BUFFERED_BYTES = 16 << 10
HEAD_BYTES = 1 << 10


class IllegalFrameError(Exception):
    """The peer sent an illegal frame, so the connection must be closed."""


class LargeFirstMessageError(IllegalFrameError):
    """The MESSAGE that begins a commit is larger than a header with a small payload can be."""


class LargeFrameError(IllegalFrameError):
    """A frame is longer than any message may be. On the other port gRPC itself refuses such a message."""


class Frame(NamedTuple):
    """A frame. Of a large MESSAGE, `body` is only the beginning.

    It is valid until the next `next_frame()`, and the MESSAGE that begins a commit until the next `enter`.
    """

    kind: int
    body: memoryview
    size: int


def _wrong_size(number: int, size: int, state: State) -> IllegalFrameError:
    what = f"a frame of kind {number} with {size} bytes in state {state.name}"
    if size > MESSAGE_BYTES:
        return LargeFrameError(what)
    if number == Kind.MESSAGE and state is State.IDLE and size:
        return LargeFirstMessageError(what)
    return IllegalFrameError(what)


class Lane:
    """One end of a connection. The peer's first frame must fit into `buffer_bytes`.

    Attributes:
        space: memory for the peer's next bytes, unless it `has_more`.
        has_more: whether bytes are left for `next_frame()`, which comes before reading.
        is_blocked: whether what has come waits for the next `enter`.
        missing: number of bytes of the last large MESSAGE that are still to be read from the socket. Its reader counts
            them down, and the buffer is empty meanwhile.
        state: the present state, which determines the legal frames.
    """

    def __init__(self, side: Side, buffer_bytes: int) -> None:
        self.missing = 0
        server = side is Side.SERVER
        self._incoming, self._outgoing = (FROM_WORKER, FROM_SERVER) if server else (FROM_SERVER, FROM_WORKER)
        self._buffer = memoryview(bytearray(buffer_bytes))
        self._start = self._stop = 0
        self.space = self._buffer
        self.has_more = self.is_blocked = False
        self._keeps = False  # the frame that begins a commit; its reader may need the data until the turn passes
        self.state = State.HELLO

    def grow(self, buffer_bytes: int) -> None:
        """Switch to a larger buffer."""
        buffer = memoryview(bytearray(buffer_bytes))
        count = self._stop - self._start
        buffer[:count] = self._buffer[self._start : self._stop]
        self._buffer, self._start, self._stop = buffer, 0, count
        self.space = buffer[count:]

    def next_frame(self, received: int = 0) -> Frame | None:
        """Note that `received` bytes were written into `space`. Returns the next frame, or None if it is incomplete.

        Raises IllegalFrameError.
        """
        self._stop += received
        available = self._stop - self._start - HEADER_BYTES
        if available < 0:
            self._wait_for_rest()
            return None
        size, number = _HEADER.unpack_from(self._buffer, self._start)
        begin = self._start + HEADER_BYTES
        rule = self._incoming[self.state].get(number)
        if rule is None:
            raise IllegalFrameError(f"a frame of kind {number} in state {self.state.name}")
        after, least, most = rule
        if self.state is State.IDLE:  # a commit's first message must fit into the buffer
            most = min(most, len(self._buffer) - HEADER_BYTES)
        if not least <= size <= most:
            raise _wrong_size(number, size, self.state)
        if rule is _BLOCKED:
            self.is_blocked, self.has_more = True, False
            return None
        if available >= size:
            self._start = begin + size
        elif size + HEADER_BYTES > len(self._buffer) and available >= HEAD_BYTES:
            self.missing = size - available
            self._start = self._stop
        else:
            self._wait_for_rest()
            return None
        self._keeps = self.state is State.IDLE and after is State.REPLYING
        self.state = after
        frame = Frame(number, self._buffer[begin : self._start], size)
        self.has_more = self._start < self._stop
        if not self.has_more:
            self._make_space()
        return frame

    def _make_space(self) -> None:
        """After the last received byte, use the buffer from its front again, unless the frame there is in use."""
        if self._keeps:
            self.space = self._buffer[self._stop :]
            self.is_blocked = not self.space
        else:
            self._start = self._stop = 0
            self.space = self._buffer

    def _wait_for_rest(self) -> None:
        """Make the memory behind an incomplete frame the `space`; at the buffer's end, move the frame to the front."""
        self.has_more = False
        if self._stop == len(self._buffer):
            if self._keeps:
                self.is_blocked = True
                return
            left = bytes(self._buffer[self._start : self._stop])
            self._buffer[: len(left)] = left
            self._start, self._stop = 0, len(left)
        self.space = self._buffer[self._stop :]

    def header(self, kind: Kind, size: int) -> bytes:
        """Return the header of a frame that is sent now, and change the state."""
        rule = self._outgoing[self.state].get(kind)
        if rule is None:
            raise AssertionError(f"{kind.name} in state {self.state.name}")
        self.state = rule.after
        return _HEADER.pack(size, kind)

    def enter(self, state: State) -> None:
        """Pass the turn after a MESSAGE."""
        if state not in TURNS.get(self.state, ()):
            raise AssertionError(f"from {self.state.name} to {state.name}")
        self.state = state
        self._keeps = self.is_blocked = False
        self.has_more = self._start < self._stop
        if not self.has_more:
            self._make_space()

    def close(self) -> None:
        """Make all frames illegal."""
        self.state = State.CLOSED
