"""A TCP proxy that cuts connections after a chosen number of bytes, as a dying machine or a broken path does."""

import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable
from typing import Literal

Direction = Literal["to_server", "to_client"]
# SO_LINGER with no time: close() resets the connection.
_RESET = struct.pack("ii", 1, 0)


class CuttingProxy:
    """Forwards to `port` on loopback. `cut_after` arms cuts; connections made after the last are sound again.

    Args:
        port: of the server, at 127.0.0.1.
        on_cut: called at each cut that `cut_after` armed, before either side can know of it.
        listen: host and port of the proxy itself; port 0 is a free one.

    Attributes:
        server_learns_after: seconds by which the server's side of a connection outlives the client's, as behind a
            router that forgets a connection.
    """

    def __init__(
        self,
        port: int,
        on_cut: Callable[[], None] = lambda: None,
        *,
        listen: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        self._upstream = ("127.0.0.1", port)
        self.on_cut = on_cut
        self.server_learns_after = 0.0
        self._lock = threading.Lock()
        # In each direction: bytes until the next cut, and then until the one after it, ...
        self._left: dict[Direction, list[int]] = {"to_server": [], "to_client": []}
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self.cuts = 0
        self.connections = 0
        self.passed: dict[Direction, int] = {"to_server": 0, "to_client": 0}
        self._listener = socket.create_server(listen)
        self.address = f"{listen[0]}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_after(self, direction: Direction, *counts: int) -> None:
        """Cut when so many more bytes have gone in this direction, then again after so many; 0: before the next one."""
        with self._lock:
            self._left[direction] = list(counts)

    def cut_one_of_all(self, choose: random.Random) -> None:
        """Cut one connection now, if there is any."""
        if pairs := sorted(self._pairs, key=id):
            self.cuts += 1
            self._cut(choose.choice(pairs))

    def disarm(self) -> None:
        with self._lock:
            self._left = {"to_server": [], "to_client": []}

    def accept_no_more(self) -> None:
        # shutdown wakes the thread in accept; close alone would not.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.accept_no_more()
        self._listener.close()
        self.server_learns_after = 0.0
        for pair in list(self._pairs):
            self._cut(pair)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._upstream)
            except OSError:
                client.close()
                continue
            pair = (client, server)
            self._pairs.add(pair)
            self.connections += 1
            threading.Thread(target=self._pump, args=(pair, client, server, "to_server"), daemon=True).start()
            threading.Thread(target=self._pump, args=(pair, server, client, "to_client"), daemon=True).start()

    def _pump(
        self,
        pair: tuple[socket.socket, socket.socket],
        source: socket.socket,
        sink: socket.socket,
        direction: Direction,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                allowed = self._take(direction, len(data))
                self.passed[direction] += allowed
                sink.sendall(data[:allowed])
                if allowed < len(data):
                    self.cuts += 1
                    self.on_cut()
                    break
        self._cut(pair)

    def _take(self, direction: Direction, count: int) -> int:
        """How many of so many bytes may pass; fewer means: cut now."""
        with self._lock:
            left = self._left[direction]
            if not left:
                return count
            if left[0] >= count:
                left[0] -= count
                return count
            return left.pop(0)

    def _cut(self, pair: tuple[socket.socket, socket.socket]) -> None:
        self._pairs.discard(pair)
        client, server = pair
        _reset(client)
        if self.server_learns_after:
            threading.Timer(self.server_learns_after, _reset, [server]).start()
        else:
            _reset(server)


def _reset(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
