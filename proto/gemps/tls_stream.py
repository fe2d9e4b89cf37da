"""TLS over a socket, for the lane. It makes fewer system calls than `ssl.SSLSocket`: one for up to STEP_BYTES."""

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

STEP_BYTES = 256 << 10
# Minimum read of ciphertext.
_LEAST_BYTES = 4 << 10

Bytes = bytes | bytearray | memoryview


class TlsStream:
    """A socket's methods, over a connected socket of any blocking mode.

    `scratch`: STEP_BYTES for ciphertext; streams of one thread may share it. `context`, `server_side` and
    `server_name`: as for `ssl.SSLContext.wrap_bio`.
    """

    def __init__(
        self,
        connection: socket.socket,
        context: ssl.SSLContext,
        scratch: memoryview,
        *,
        server_side: bool = False,
        server_name: str | None = None,
    ) -> None:
        self._connection = connection
        self._scratch = scratch
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side, server_name)
        self._read: Callable[[int, memoryview], int] = self._tls.read  # type: ignore[assignment]  # it takes any buffer
        self._unsent = memoryview(b"")  # ciphertext that the kernel did not take

    @property
    def has_unsent(self) -> bool:
        """Whether `flush` has something to send."""
        return bool(self._unsent) or self._outgoing.pending > 0

    def do_handshake(self) -> None:
        """Do the handshake. Call it again after BlockingIOError. Raises ssl.SSLError, and what the socket raises."""
        self.flush()
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self.flush()
                self._fill(_LEAST_BYTES)
            except ssl.SSLError:
                with suppress(OSError):
                    self.flush()  # the alert
                raise
            else:
                self.flush()
                return

    def recv_into(self, space: memoryview, wait_all: bool = False) -> int:
        """Receive plaintext; returns its size, 0 at the end of the stream. Raises OSError, as a socket does.

        With `wait_all` it continues until `space` is full, the stream ends, or a non-blocking socket has no more.
        """
        count = 0
        while count < len(space):
            try:
                if not (more := self._read(len(space) - count, space[count:])):  # the peer's close_notify
                    break
                count += more
            except ssl.SSLWantReadError:
                if count and not wait_all:
                    break
                try:
                    self._fill(len(space) - count)
                except BlockingIOError:
                    if not count:
                        raise
                    break
            except ssl.SSLEOFError:
                break
        return count

    def put(self, data: Bytes) -> int:
        """Encrypt some of `data`, returning how much. Flushes STEP_BYTES at once; raises as `flush`."""
        if len(self._unsent) + self._outgoing.pending >= STEP_BYTES:
            self.flush()
        return self._tls.write(memoryview(data)[:STEP_BYTES])

    def sendall(self, *pieces: Bytes) -> None:
        """Send all of these over a socket that blocks."""
        for piece in pieces:
            view = memoryview(piece)
            while view:
                view = view[self.put(view) :]
        self.flush()

    def flush(self) -> None:
        """Send waiting ciphertext. Raises BlockingIOError when the kernel does not take all."""
        while self.has_unsent:
            if not self._unsent:
                self._unsent = memoryview(self._outgoing.read())
            self._unsent = self._unsent[self._connection.send(self._unsent) :]

    def _fill(self, wanted: int) -> None:
        count = self._connection.recv_into(self._scratch, min(max(wanted, _LEAST_BYTES), STEP_BYTES))
        if count:
            self._incoming.write(self._scratch[:count])
        else:
            self._incoming.write_eof()
