"""Taking connections in at a listening socket of the server's own."""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import NoReturn

# When there are no more descriptors: those that are open go on.
_PAUSE_SECONDS = 1.0

logger = logging.getLogger(__name__)


async def accept_all(
    listening: socket.socket, has_room: Callable[[], bool], take: Callable[[socket.socket], None], what: str
) -> NoReturn:
    """Hand every connection to `take`; while there is no room they are closed. `what`: what they are for, for the log.

    `listening` does not block; neither do the connections.
    """
    loop = asyncio.get_running_loop()
    while True:
        try:
            connection, _ = await loop.sock_accept(listening)
        except OSError as error:
            logger.warning("no connection for %s: %s", what, error.strerror)
            await asyncio.sleep(_PAUSE_SECONDS)
            continue
        if has_room():
            connection.setblocking(False)
            take(connection)
        else:
            connection.close()
