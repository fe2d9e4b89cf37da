"""Accept loop of a listening socket."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import NoReturn

from gem_server.peer_log import PeerLog

# For example without free descriptors.
_PAUSE_SECONDS = 1.0


async def accept_all(
    listening: socket.socket,
    has_room: Callable[[], bool],
    take: Callable[[socket.socket], Awaitable[None]],
    what: str,
    peer_log: PeerLog,
    pause: float = 0.0,
) -> NoReturn:
    """Pass connections to `take`, or close them while `has_room()` is false.

    `listening` must be non-blocking. Sleeps: `sock_accept` does not yield while connections are pending.
    """
    loop = asyncio.get_running_loop()
    while True:
        try:
            connection, _ = await loop.sock_accept(listening)
        except OSError as error:
            peer_log.refuse(what, f"no connection for {what}: {error.strerror}")
            await asyncio.sleep(_PAUSE_SECONDS)
            continue
        if has_room():
            connection.setblocking(False)
            try:
                await take(connection)
            except asyncio.CancelledError:
                connection.close()
                raise
            except Exception as error:
                connection.close()
                line = f"a connection for {what} could not be taken"
                peer_log.log("failed", what, line, level=logging.ERROR, error=error)
        else:
            connection.close()
        await asyncio.sleep(pause)
