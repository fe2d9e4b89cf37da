"""The kit's side of the lane (lane.proto): it turns TCP connections into calls, and their frames into events.

A connection is a `LaneCall`. Its method is Hello until the scenario's thread has answered the HELLO frame by `welcome`.
From then on its method is Commit, and the scenario's thread treats it like a Commit stream over gRPC.

Two threads for each connection carry bytes, one in each direction. They judge nothing: an illegal frame becomes an
event, for which the scenario's thread then raises the fault.
"""

from __future__ import annotations

import queue
import socket
import struct
import threading
from contextlib import suppress

from gemps.limits import HELLO_BYTES, MESSAGE_BYTES
from gemps.v1 import lane_pb2

from gem_conformance.grpc_server import Call, Event, EventKind, Refusal

__all__ = ["LaneCall", "LaneListener"]

_HELLO, _WELCOME, _MESSAGE, _END, _CANCEL, _PING, _PONG = range(1, 8)
_HEADER = struct.Struct("<IB")
# For each kind of frame that a worker may send: the smallest and the largest number of bytes in its body.
_SIZES = {_HELLO: (1, HELLO_BYTES), _MESSAGE: (1, MESSAGE_BYTES), _CANCEL: (0, 0), _PING: (8, 8)}


class LaneCall(Call):
    """A connection to the lane. Its two threads start at once, and end when the connection is closed."""

    is_lane = True

    def __init__(self, connection: socket.socket, events: queue.Queue[Event]) -> None:
        super().__init__("Hello", events)
        self._connection = connection
        for loop in (self._read_frames, self._write_frames):
            threading.Thread(target=loop, daemon=True).start()

    def welcome(self, incarnation: int) -> None:
        """Answer the HELLO frame, after which the worker may commit. `incarnation` is the server's."""
        self.method = "Commit"
        body = lane_pb2.LaneWelcome(incarnation=incarnation).SerializeToString()
        self._outgoing.put(_frame(_WELCOME, body))

    def send(self, message: bytes) -> None:
        """Queue a serialized CommitResponse, which another thread sends as a MESSAGE frame. Does not block."""
        self._outgoing.put(_frame(_MESSAGE, message))

    def _read_frames(self) -> None:
        with suppress(OSError):
            expected = {_HELLO}
            while True:
                if not self._may_read.is_set():
                    self._allowed.acquire()
                size, kind = _HEADER.unpack(self._read_exactly(_HEADER.size))
                least, most = _SIZES.get(kind, (1, 0))
                if kind not in expected or not least <= size <= most:
                    self._events.put(Event(EventKind.ILLEGAL, self, f"a frame of kind {kind}, {size} bytes".encode()))
                    return
                body = self._read_exactly(size)
                if kind == _CANCEL:
                    break
                if kind == _PING:
                    self._outgoing.put(_frame(_PONG, body))
                else:
                    self._events.put(Event(EventKind.MESSAGE, self, body))
                expected = {_MESSAGE, _PING, _CANCEL}
        self._ended()

    def _read_exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece = self._connection.recv(count - len(data))
            if not piece:
                raise OSError("the worker closed the connection")
            data += piece
        return bytes(data)

    def _write_frames(self) -> None:
        with suppress(OSError):
            while isinstance(outgoing := self._outgoing.get(), bytes):
                self._connection.sendall(outgoing)
            if isinstance(outgoing, Refusal) and outgoing.reason:
                self._connection.sendall(_frame(_END, outgoing.status().SerializeToString()))
        with suppress(OSError):  # shutdown wakes the thread that reads; close alone would leave it blocked in recv
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


class LaneListener:
    """Accepts connections to the lane at `port`, which the operating system chooses."""

    def __init__(self, host: str, events: queue.Queue[Event]) -> None:
        self._events = events
        self._listener = socket.create_server((host, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        """Stop listening. Connections that were accepted before stay open."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                LaneCall(self._listener.accept()[0], self._events)


def _frame(kind: int, body: bytes) -> bytes:
    return _HEADER.pack(len(body), kind) + body
