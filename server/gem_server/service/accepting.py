"""Taking connections in at a listening socket of the server's own."""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import NoReturn

from gem_server.service.refusal_log import RefusalLog

# When there are no more descriptors: those that are open go on.
_PAUSE_SECONDS = 1.0

logger = logging.getLogger(__name__)


async def accept_all(
    listening: socket.socket,
    has_room: Callable[[], bool],
    take: Callable[[socket.socket], None],
    what: str,
    pause: float = 0.0,
) -> NoReturn:
    """Hand every connection to `take`; while there is no room they are closed. `what`: what they are for, for the log.

    `listening` does not block; neither do the connections. After each connection the event loop has its turn, and
    `pause` seconds pass: `sock_accept` returns at once while connections are waiting.
    """
    loop = asyncio.get_running_loop()
    refusals = RefusalLog()
    while True:
        try:
            connection, _ = await loop.sock_accept(listening)
        except OSError as error:
            refusals.tell(what, f"no connection for {what}: {error.strerror}")
            await asyncio.sleep(_PAUSE_SECONDS)
            continue
        if has_room():
            connection.setblocking(False)
            try:
                take(connection)
            except Exception:
                connection.close()
                logger.exception("a connection for %s could not be taken", what)
        else:
            connection.close()
        await asyncio.sleep(pause)
