"""Closes the connection of a peer that does not read: gRPC's Python server has no way to cancel a call.

A message that waits for such a peer stays in memory (2 MiB of a chunk of 1 MiB), and the call's status behind it,
until the connection ends.
"""

import os
import socket
from contextlib import suppress
from urllib.parse import unquote


def hang_up(peer: str) -> None:
    """Shut down the TCP connection of this peer, as gRPC names it: `ipv4:10.0.0.2:4242`, `ipv6:%5B::1%5D:4242`."""
    for descriptor in os.listdir("/dev/fd"):
        # A copy is looked at: the descriptor itself may be closed, and be another file, at any moment.
        with suppress(OSError, ValueError):
            copy = os.dup(int(descriptor))
            try:
                connection = socket.socket(fileno=copy)
            except OSError:  # not a socket
                os.close(copy)
                continue
            with connection:
                host, port, *_ = connection.getpeername()
                host = host.removeprefix("::ffff:")
                if unquote(peer) == (f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"):
                    connection.shutdown(socket.SHUT_RDWR)
