"""A caller at the commit port that says every frame by itself, and the port, with a handler of the test's."""

import asyncio
import gc
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Self

from gem_server.security.access import Access
from gem_server.service.commit_connection import CommitConnection
from gem_server.service.commit_port import CommitPort
from gemps.header_block import read_headers, write_headers
from gemps.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    SETTINGS,
    frame,
)

PATIENCE = 30.0
PATH = "/test/Commit"
INCARNATION = 4711
# Of the settings that a caller may send.
INITIAL_WINDOW, MAX_FRAME = 4, 5

Handler = Callable[[CommitConnection], Awaitable[None]]


class Frame(NamedTuple):
    """One of the server's."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def headers(self) -> dict[str, str]:
        assert self.kind == HEADERS
        return {name: value.decode("latin-1") for name, value in read_headers(self.payload).items()}


def prefixed(message: bytes) -> bytes:
    """A message as gRPC sends it."""
    return struct.pack(">BI", 0, len(message)) + message


def opening(stream: int = 1, *, path: str = PATH, incarnation: object = INCARNATION, **more: str) -> bytes:
    """The frame that begins a call."""
    headers = {":method": "POST", ":path": path, "gemps-incarnation": str(incarnation)} | more
    return frame(HEADERS, END_HEADERS, stream, write_headers(headers.items()))


def data(message: bytes, stream: int = 1, *, last: bool = False) -> bytes:
    """A message in a frame of its own."""
    return frame(DATA, END_STREAM if last else 0, stream, prefixed(message))


def settings(**values: int) -> bytes:
    """The caller's settings, by the names above in small letters."""
    numbers = {"initial_window": INITIAL_WINDOW, "max_frame": MAX_FRAME}
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", numbers[name], one) for name, one in values.items()))


class Peer:
    """A caller."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._loop = asyncio.get_running_loop()
        self.payload = b""  # of the frames of data that `status` passed over

    @classmethod
    async def at(cls, port: int, *, receive_buffer: int | None = None) -> Self:
        connection = socket.socket()
        connection.setblocking(False)
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(connection)

    async def send(self, *parts: bytes) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._loop.sock_sendall(self._socket, b"".join(parts))

    async def begin(self, **values: int) -> None:
        """What comes before any call."""
        await self.send(PREFACE, settings(**values))

    async def exactly(self, count: int) -> bytes:
        got = b""
        async with asyncio.timeout(PATIENCE):
            while len(got) < count:
                more = await self._loop.sock_recv(self._socket, count - len(got))
                if not more:
                    raise EOFError
                got += more
        return got

    async def frame(self) -> Frame:
        head = await self.exactly(9)
        payload = await self.exactly(int.from_bytes(head[:3], "big"))
        return Frame(head[3], head[4], int.from_bytes(head[5:9], "big"), payload)

    async def next(self, *kinds: int) -> Frame:
        """The next frame of one of these kinds; those of data that are passed over are kept."""
        while (one := await self.frame()).kind not in kinds:
            if one.kind == DATA:
                self.payload += one.payload
        return one

    async def message(self) -> bytes:
        """The next message, of however many frames."""
        while len(self.payload) < 5 or len(self.payload) < 5 + int.from_bytes(self.payload[1:5], "big"):
            self.payload += (await self.next(DATA)).payload
        size = int.from_bytes(self.payload[1:5], "big")
        assert self.payload[0] == 0
        message, self.payload = self.payload[5 : 5 + size], self.payload[5 + size :]
        return message

    async def status(self, stream: int = 1) -> tuple[int, str]:
        """How the call ends."""
        while "grpc-status" not in (one := await self.next(HEADERS)).headers:
            pass
        assert one.flags & END_STREAM
        assert one.stream == stream
        return int(one.headers["grpc-status"]), one.headers["grpc-message"]

    async def answers_pings(self, word: bytes = b"anybody?") -> bool:
        """Whether the server hears what is said beside messages."""
        await self.send(frame(PING, 0, 0, word))
        return await self.next(PING) == Frame(PING, ACK, 0, word)

    async def end(self) -> bytes:
        """What comes until the server hangs up."""
        got = b""
        async with asyncio.timeout(PATIENCE):
            try:
                while more := await self._loop.sock_recv(self._socket, 1 << 16):
                    got += more
            except ConnectionResetError:
                pass
        return got

    async def pushes(self, part: bytes, at_most: int) -> int:
        """Sends this over and over, until TCP takes no more of it for a moment; how many bytes it took."""
        sent = 0
        try:
            while sent < at_most:
                async with asyncio.timeout(0.3):
                    await self._loop.sock_sendall(self._socket, part)
                sent += len(part)
        except TimeoutError:
            pass
        return sent

    @property
    def name(self) -> str:
        """What the server calls it."""
        host, port = self._socket.getsockname()
        return f"ipv4:{host}:{port}"

    def close(self) -> None:
        self._socket.close()


async def echo(context: CommitConnection) -> None:
    """A handler: each message comes back."""
    await context.send_initial_metadata(())
    while isinstance(message := await context.read(), bytes | memoryview):
        await context.write(bytes(message))


class Stage:
    """A port whose handler can be changed, and callers at it."""

    def __init__(self, max_connections: int, access: Access | None) -> None:
        self.handler: Handler = echo
        self.running = 0
        self._callers: list[str] = []
        self.port = CommitPort(PATH, self._serve, INCARNATION, max_connections, access)
        self.port.open("127.0.0.1", 0)
        self._peers: list[Peer] = []

    @property
    def calls(self) -> int:
        """So many have begun."""
        return len(self._callers)

    async def _serve(self, _: object, context: Any) -> None:
        self._callers.append(context.peer())
        self.running += 1
        try:
            await self.handler(context)
        finally:
            self.running -= 1

    async def peer(self, **settings: Any) -> Peer:
        """A caller that has said nothing yet."""
        peer = await Peer.at(self.port.port, **settings)
        self._peers.append(peer)
        return peer

    async def calling(self, **settings: Any) -> Peer:
        """A caller with a call, the handler of which has begun."""
        peer = await self.peer()
        await peer.begin(**settings)
        await peer.send(opening())
        await self.until(lambda: peer.name in self._callers)  # how many run says nothing: another's may just end
        return peer

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.002)

    async def close(self) -> None:
        await self.port.close(None)
        for peer in self._peers:
            peer.close()


@asynccontextmanager
async def on_stage(max_connections: int = 50, access: Access | None = None) -> AsyncIterator[Stage]:
    """A port; at its end nothing runs, and no error has got lost in the event loop."""
    lost: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: lost.append(context))
    before = asyncio.all_tasks()
    stage = Stage(max_connections, access)
    try:
        yield stage
    finally:
        await stage.close()
    await asyncio.sleep(0.01)
    assert stage.running == 0
    assert asyncio.all_tasks() - before <= {asyncio.current_task()}
    gc.collect(1)  # that an error was never looked at is told by its task's end; all of these are young
    assert lost == []
