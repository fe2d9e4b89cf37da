"""A client of the lane, written from lane.proto alone. It looks like a call of grpc.aio, and can send anything."""

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc
from gemps.v1 import commit_pb2, lane_pb2
from google.protobuf.message import Message
from google.rpc import status_pb2

from tests.wire.refusals import PATIENCE

HELLO, WELCOME, MESSAGE, END, CANCEL, PING, PONG = range(1, 8)
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_TOO_LATE = grpc.StatusCode.DEADLINE_EXCEEDED, "deadline exceeded"
# Of a client that does not read ahead.
_LITTLE_BYTES = 16 << 10


def frame(kind: int, body: bytes = b"") -> bytes:
    return struct.pack("<IB", len(body), kind) + body


def hello(session_id: bytes, incarnation: int, **changes: Any) -> lane_pb2.LaneHello:
    fields = {"magic": b"gemps-lane", "version": 1, "incarnation": incarnation, "session_id": session_id}
    return lane_pb2.LaneHello(**(fields | changes))


class LanePeer:
    """A connection, frame by frame."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(
        cls, host: str, port: int, tls: ssl.SSLContext | None = None, *, reads_ahead: bool = True
    ) -> "LanePeer":
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if not reads_ahead:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LITTLE_BYTES)
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, (host, port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            name = host if tls is not None else None
            limit = _LITTLE_BYTES if not reads_ahead else 4 << 20
            return cls(*await asyncio.open_connection(sock=connection, ssl=tls, server_hostname=name, limit=limit))
        except BaseException:
            connection.close()
            raise

    async def send(self, kind: int, body: bytes = b"") -> None:
        await self.send_bytes(frame(kind, body))

    async def send_bytes(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def receive(self) -> tuple[int, bytes] | None:
        """The next frame; None when the server has closed the connection."""
        try:
            size, kind = struct.unpack("<IB", await self.reader.readexactly(5))
            return kind, await self.reader.readexactly(size)
        except (asyncio.IncompleteReadError, OSError):
            return None

    async def expect(self, kind: int) -> bytes:
        """The body of the next frame, which is of this kind."""
        received = await asyncio.wait_for(self.receive(), PATIENCE)
        assert received is not None, "the connection ended"
        assert received[0] == kind, received
        return received[1]

    async def closed(self) -> bool:
        """Whether nothing but the connection's end comes."""
        return await asyncio.wait_for(self.receive(), PATIENCE) is None

    async def end(self) -> status_pb2.Status:
        """Expects END and the connection's end."""
        body = await self.expect(END)
        assert await self.closed()
        return status_pb2.Status.FromString(body)

    def close(self) -> None:
        self.writer.close()

    def abort(self) -> None:
        """Break the connection off (RST), as a machine that goes away does."""
        self.writer.transport.abort()


class LaneCall:
    """One connection as a Commit call. Nothing that a test sends is checked here."""

    def __init__(
        self,
        address: tuple[str, int],
        greeting: lane_pb2.LaneHello,
        tls: ssl.SSLContext | None,
        *,
        reads_ahead: bool,
        timeout: float | None,
    ) -> None:
        self._address, self._greeting, self._tls = address, greeting, tls
        self._reads_ahead = reads_ahead
        self._wanted = asyncio.Semaphore(0)
        self._peer: LanePeer | None = None
        self._messages: asyncio.Queue[commit_pb2.CommitResponse | None] = asyncio.Queue()
        self._status: tuple[grpc.StatusCode, str, bytes] | None = None
        self._is_half_closed = False
        self._callbacks: list[Callable[[Any], None]] = []
        self._welcomed = asyncio.Event()
        self._task = asyncio.create_task(self._run())
        self._deadline = asyncio.get_running_loop().call_later(timeout, self._give_up, *_TOO_LATE) if timeout else None

    # -- as grpc.aio has it ----------------------------------------------------------------------------------------

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    def done(self) -> bool:
        return self._status is not None

    async def code(self) -> grpc.StatusCode:
        assert self._status is not None
        return self._status[0]

    async def details(self) -> str:
        assert self._status is not None
        return self._status[1]

    async def initial_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata()

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        assert self._status is not None
        encoded = self._status[2]
        return grpc.aio.Metadata(*([("grpc-status-details-bin", encoded)] if encoded else []))

    async def write(self, message: Message | bytes) -> None:
        data = message if isinstance(message, bytes) else message.SerializeToString()
        await self._welcomed.wait()
        if self._status is None:
            assert self._peer is not None
            try:
                await self._peer.send(MESSAGE, data)
            except OSError:
                self._wanted.release()
                await self._task  # the server may have said why
        if self._status is not None:
            raise await self._error()

    async def read(self) -> Any:
        self._wanted.release()
        message = await self._messages.get()
        if message is not None:
            return message
        self._messages.put_nowait(None)
        assert self._status is not None
        if self._status[0] is grpc.StatusCode.OK:
            return grpc.aio.EOF
        raise await self._error()

    async def done_writing(self) -> None:
        """The lane has no half-close: a worker that is done says CANCEL."""
        await self._welcomed.wait()
        self._is_half_closed = True
        if self._status is None and self._peer is not None:
            with suppress(OSError):
                await self._peer.send(CANCEL)

    def cancel(self) -> None:
        self._give_up(grpc.StatusCode.CANCELLED, "cancelled")

    # --------------------------------------------------------------------------------------------------------------

    def abort(self) -> None:
        """The connection breaks."""
        if self._peer is not None:
            self._peer.abort()
        self._finish(grpc.StatusCode.UNAVAILABLE, "broken off")

    def _give_up(self, code: grpc.StatusCode, details: str) -> None:
        if self._peer is not None and self._status is None:
            self._peer.writer.write(frame(CANCEL))
        self._finish(code, details)

    def _finish(self, code: grpc.StatusCode, details: str, encoded: bytes = b"") -> None:
        if self._status is not None:
            return
        self._status = code, details, encoded
        if self._deadline is not None:
            self._deadline.cancel()
        if self._peer is not None:
            self._peer.close()
        self._welcomed.set()
        self._messages.put_nowait(None)
        if self._task is not asyncio.current_task():
            self._task.cancel()
        for callback in self._callbacks:
            callback(self)

    async def _error(self) -> grpc.aio.AioRpcError:
        return grpc.aio.AioRpcError(
            await self.code(), await self.initial_metadata(), await self.trailing_metadata(), await self.details()
        )

    async def _run(self) -> None:
        try:
            peer = await LanePeer.connect(*self._address, self._tls, reads_ahead=self._reads_ahead)
            if self._status is not None:
                peer.close()
                return
            self._peer = peer
            await peer.send(HELLO, self._greeting.SerializeToString())
            while (received := await peer.receive()) is not None:
                kind, body = received
                if kind == WELCOME:
                    assert lane_pb2.LaneWelcome.FromString(body).incarnation == self._greeting.incarnation
                    self._welcomed.set()
                elif kind == END:
                    status = status_pb2.Status.FromString(body)
                    self._finish(_CODES[status.code], status.message, body)
                    return
                else:
                    assert kind == MESSAGE, f"a frame of kind {kind}"
                    self._messages.put_nowait(commit_pb2.CommitResponse.FromString(body))
                if not self._reads_ahead:
                    await self._wanted.acquire()
        except OSError as error:
            self._finish(grpc.StatusCode.UNAVAILABLE, f"the connection broke: {error}")
            return
        if self._is_half_closed:
            self._finish(grpc.StatusCode.OK, "")
        else:
            self._finish(grpc.StatusCode.UNAVAILABLE, "the server closed the connection")
