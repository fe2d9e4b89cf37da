"""Closes TCP connections: grpc.aio cannot cancel calls with unsent messages."""

import os
import socket
from contextlib import suppress
from urllib.parse import unquote


def disconnect(peer: str) -> None:
    """Shut down `peer`'s TCP connection (gRPC notation)."""
    for descriptor in os.listdir("/dev/fd"):
        # Duplicated: the original may be reused concurrently.
        with suppress(OSError, ValueError):
            copy = os.dup(int(descriptor))
            try:
                connection = socket.socket(fileno=copy)
            except OSError:
                os.close(copy)
                continue
            with connection:
                host, port, *_ = connection.getpeername()
                host = host.removeprefix("::ffff:")
                if unquote(peer) == (f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"):
                    connection.shutdown(socket.SHUT_RDWR)
