"""The lane's port (lane.proto)."""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping

from gemps import lane
from gemps.lane import IllegalFrameError
from gemps.v1 import lane_pb2

from gem_server.errors import StartupError
from gem_server.peer_log import PeerLog
from gem_server.security.certificates import Certificates
from gem_server.security.watched_files import WatchedFiles
from gem_server.service.accept import accept_all
from gem_server.service.auth_interceptor import address_of
from gem_server.service.lane_connection import LaneConnection

# Largest number of connections before HELLO. If one more comes, the oldest is closed.
MAX_STRANGERS = 256
# Limits TLS handshakes, of which each takes 4 ms, to a fifth of a core.
HANDSHAKE_PAUSE_SECONDS = 0.02

logger = logging.getLogger(__name__)


class LanePort:
    """Accepts lane connections, on one event loop. `serve` is called for each that has sent a valid HELLO."""

    def __init__(
        self,
        serve: Callable[[LaneConnection], Awaitable[None]],
        incarnation: int,
        certificates: WatchedFiles[Certificates] | None,
        peer_log: PeerLog | None = None,
    ) -> None:
        self._serve = serve
        self.incarnation = incarnation
        self._certificates = certificates
        self._peer_log = peer_log or PeerLog()
        self._listening: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._connections: dict[LaneConnection, None] = {}  # oldest first
        self._strangers: dict[LaneConnection, None] = {}
        self.port = 0

    @property
    def connections(self) -> tuple[LaneConnection, ...]:
        """The open connections, the oldest first."""
        return tuple(self._connections)

    @property
    def strangers(self) -> int:
        """The number of connections without a valid HELLO so far."""
        return len(self._strangers)

    def open(self, host: str, port: int, *, only_if_free: bool = False) -> int:
        """Listen at the host's addresses that can be bound, as gRPC does; return the port.

        `only_if_free`: fail if any address has the port in use. Raises StartupError.
        """
        failures: dict[str, OSError] = {}
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except OSError as error:
            found, failures[host] = [], error
        for family, name in dict.fromkeys((family, name) for family, _, _, _, name in found):
            try:
                self._listen(family, str(name[0]), self.port or port)
            except OSError as error:
                failures[str(name[0])] = error
        in_use = any(error.errno == errno.EADDRINUSE for error in failures.values())
        if not self._listening or (only_if_free and in_use):
            self._stop_listening()
            raise StartupError(
                f"cannot listen on port {port} of {host} for the lane: {_reasons(failures)}; stop a process that has "
                "the port, or choose another --lane-port (0 takes a free one, -1 none)"
            )
        if failures:
            logger.warning(
                "the lane cannot listen on port %d at every address of %s: %s. Workers that connect to those commit "
                "over gRPC; to avoid that, choose another --lane-port or --bind",
                self.port,
                host,
                _reasons(failures),
            )
        for listening in self._listening:
            pause = 0.0 if self._certificates is None else HANDSHAKE_PAUSE_SECONDS
            accepting = accept_all(listening, lambda: True, self._accept, "commits", self._peer_log, pause)
            self._accepting.append(asyncio.create_task(accepting))
        return self.port

    def _listen(self, family: int, address: str, port: int) -> None:
        # As gRPC does.
        dualstack = address == "::" and socket.has_dualstack_ipv6()
        listening = socket.create_server(
            (address, port), family=family, backlog=socket.SOMAXCONN, dualstack_ipv6=dualstack
        )
        self._listening.append(listening)
        listening.setblocking(False)
        self.port = listening.getsockname()[1]

    async def close(self, grace: float | None) -> None:
        """Stop within `grace` seconds. Idempotent."""
        for accepting in self._accepting:
            accepting.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        self._stop_listening()
        calls = [one.task for one in self._connections if one.task is not None and not one.task.done()]
        if calls and grace:
            await asyncio.wait(calls, timeout=grace)
        for connection in list(self._connections):
            connection.close()
        await asyncio.gather(*calls, return_exceptions=True)

    def _stop_listening(self) -> None:
        for listening in self._listening:
            listening.close()
        self._listening.clear()
        self.port = 0

    async def _accept(self, accepted: socket.socket) -> None:
        tls = (await self._certificates.newest()).context if self._certificates is not None else None
        if len(self._strangers) >= MAX_STRANGERS:
            next(iter(self._strangers)).close()
        try:
            connection = LaneConnection(
                accepted,
                tls,
                on_hello=self._on_hello,
                serve=self._serve,
                on_illegal=self._on_illegal,
                on_end=self._forget,
            )
        except OSError:
            accepted.close()
            return
        self._connections[connection] = self._strangers[connection] = None
        connection.start()

    def _on_hello(self, connection: LaneConnection, hello: lane_pb2.LaneHello) -> None:
        if hello.magic != lane.MAGIC:
            raise IllegalFrameError(f"a HELLO without the magic {lane.MAGIC.decode()!r}: this is no worker")
        if hello.version != lane.VERSION:
            raise IllegalFrameError(f"a HELLO of version {hello.version}; this server speaks {lane.VERSION}")
        if hello.incarnation != self.incarnation:
            raise IllegalFrameError("a HELLO for another server, or for this one before its restart: join again")
        self._strangers.pop(connection, None)

    def _on_illegal(self, connection: LaneConnection, reason: str) -> None:
        address = address_of(connection)
        self._peer_log.refuse(
            address.rpartition(":")[0], f"a connection of the lane from {address} was ended: {reason}"
        )

    def _forget(self, connection: LaneConnection) -> None:
        self._connections.pop(connection, None)
        self._strangers.pop(connection, None)


def _reasons(failures: Mapping[str, OSError]) -> str:
    return ", ".join(f"{address} ({_reason(error)})" for address, error in failures.items())


def _reason(error: OSError) -> str:
    """Return the error's text without an address. Names that were not resolved have negative error numbers."""
    return os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error)
