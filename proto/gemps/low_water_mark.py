"""Fewer wake-ups while a long payload arrives."""

import socket
from contextlib import suppress

WAKE_BYTES = 128 << 10
# Read without a mark, which must not exceed the bytes to come. TLS may hold a record, a blocking read WAKE_BYTES.
RESERVE_BYTES = 2 * WAKE_BYTES + (32 << 10)


class LowWaterMark:
    """SO_RCVLOWAT of a TCP socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._bytes = 1

    def expect(self, count: int) -> int:
        """Set it while `count` bytes of a message are to come; 0 resets it.

        Returns how many a blocking read may ask for.
        """
        is_long = count >= RESERVE_BYTES + WAKE_BYTES
        wanted = WAKE_BYTES if is_long else 1
        if wanted != self._bytes:
            self._bytes = wanted
            with suppress(OSError):  # Windows has none
                self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
        return count - RESERVE_BYTES if is_long else count
