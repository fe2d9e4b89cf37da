"""The commit port: another port of this server, which takes Commit calls without gRPC's library (session.proto).

gRPC's Python server copies each message three times on its way in and twice on its way out, and a commit is little else
than two such ways. What is spoken here is the same call; whoever cannot reach this port makes it at the ordinary one.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable

import grpc

from gem_server.errors import Refusal, StartupError
from gem_server.security.access import Access
from gem_server.service.accepting import accept_all
from gem_server.service.answering import Context
from gem_server.service.commit_connection import CommitConnection
from gem_server.service.door import address_of, authorization
from gem_server.service.listener import MAX_RECEIVE_BYTES
from gem_server.service.refusal_log import RefusalLog
from gem_server.service.status_codes import abort

# What a caller sends to show that it takes this server for the one that told it this port; and is told, as anybody
# else might accept its call.
INCARNATION_KEY = "gemps-incarnation"
# Connections beside those of sessions: of workers that connect anew, and of whoever says nothing.
SPARE_CONNECTIONS = 64
# Memory for messages that is kept for the next ones: for so many peers at once.
_SPARE_MESSAGES = 16

logger = logging.getLogger(__name__)


class CommitPort:
    """Takes Commit calls from `open` to `close`; both on one event loop.

    Args:
        path: of the call.
        serve: its handler.
        incarnation: of this server.
        max_connections: those beyond are closed at once.
        access: who may call, where tokens are asked for.
    """

    def __init__(
        self,
        path: str,
        serve: Callable[[object, Context], Awaitable[None]],
        incarnation: int,
        max_connections: int,
        access: Access | None = None,
    ) -> None:
        self._path = path.encode()
        self._serve = serve
        self._incarnation = str(incarnation).encode()
        self._max_connections = max_connections
        self._access = access
        self._refusals = RefusalLog()
        self._listening: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._connections: set[CommitConnection] = set()
        self._spare = deque[memoryview](maxlen=_SPARE_MESSAGES)
        self.port = 0

    def open(self, host: str, port: int) -> int:
        """Listen at every address of the host; returns the port. Raises StartupError when it cannot be had."""
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, name in dict.fromkeys((family, name) for family, _, _, _, name in found):
                listening = socket.create_server(
                    (name[0], self.port or port),
                    family=family,
                    backlog=socket.SOMAXCONN,
                    # As gRPC does with an address that is all addresses.
                    dualstack_ipv6=name[0] == "::" and socket.has_dualstack_ipv6(),
                )
                self._listening.append(listening)
                listening.setblocking(False)
                self.port = listening.getsockname()[1]
        except OSError as error:
            self._stop_listening()
            raise StartupError(
                f"cannot listen on port {port} of {host} for commits: another process has it, or the address is not "
                "this machine's; stop that process, or choose another --commit-port (0 takes a free one, -1 none)"
            ) from error
        for listening in self._listening:
            accepting = accept_all(listening, self._has_room, self._take, "commits")
            self._accepting.append(asyncio.create_task(accepting))
        return self.port

    async def close(self, grace: float | None) -> None:
        """End: calls that run may go on for `grace` seconds. Harmless a second time."""
        for accepting in self._accepting:
            accepting.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        self._stop_listening()
        calls = [one.task for one in self._connections if one.task is not None]
        if calls and grace:
            await asyncio.wait(calls, timeout=grace)
        await asyncio.sleep(0)
        for connection in list(self._connections):
            connection.close()
        await asyncio.gather(*calls, return_exceptions=True)

    def _stop_listening(self) -> None:
        for listening in self._listening:
            listening.close()
        self._listening.clear()

    def _has_room(self) -> bool:
        return len(self._connections) < self._max_connections

    def _take(self, connection: socket.socket) -> None:
        taken = CommitConnection(connection, self._call, MAX_RECEIVE_BYTES, self._spare, self._connections.discard)
        self._connections.add(taken)
        taken.start()

    async def _call(self, context: CommitConnection) -> None:
        if context.header(":path") != self._path:
            await context.abort(
                grpc.StatusCode.UNIMPLEMENTED, "this port takes Commit calls alone: give the server's ordinary one"
            )
        if context.header(INCARNATION_KEY) != self._incarnation:
            await context.abort(
                grpc.StatusCode.UNAVAILABLE, "another server's port, or an earlier one's: Join tells it"
            )
        if self._access is not None:
            try:
                self._access.check("Commit", authorization(context.invocation_metadata()))
            except Refusal as refusal:
                address = address_of(context)
                text = f"a call from {address} was refused: {refusal.message}"
                self._refusals.tell(address.rpartition(":")[0], text)
                await abort(context, refusal)
        await context.send_initial_metadata(((INCARNATION_KEY, self._incarnation),))
        await self._serve(None, context)
