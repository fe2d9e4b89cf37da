"""Fewer wake-ups during long payloads."""

import socket
from contextlib import suppress

WAKE_BYTES = 256 << 10
# More than TLS holds must follow a mark.
RESERVE_BYTES = WAKE_BYTES + (32 << 10)


class LowWaterMark:
    """Receive low-water mark of a socket (SO_RCVLOWAT)."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._is_set = False

    def expect(self, count: int) -> int:
        """Set it for `count` bytes to come; return how many a blocking read may request; 0 resets."""
        is_long = count >= RESERVE_BYTES + WAKE_BYTES
        if is_long != self._is_set:
            with suppress(OSError):
                self._is_set = is_long and self._has_room()
                mark = WAKE_BYTES if self._is_set else 1
                self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark)
        return count - RESERVE_BYTES if is_long else count

    def _has_room(self) -> bool:
        return self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= 2 * WAKE_BYTES
