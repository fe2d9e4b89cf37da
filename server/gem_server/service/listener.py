"""The gRPC server."""

import logging
import socket
from pathlib import Path

import grpc
from gemps.limits import MESSAGE_BYTES
from grpc_reflection.v1alpha import reflection

from gem_server.errors import StartupError
from gem_server.peer_log import PeerLog
from gem_server.security.protection import Protection
from gem_server.service import handlers
from gem_server.service.auth_interceptor import TokenInterceptor, server_credentials
from gem_server.service.first_message import FirstMessages
from gem_server.service.health import SERVICE as HEALTH
from gem_server.service.health import Health
from gem_server.telemetry.refusals import Refusals

MIB = 1024 * 1024
# grpc.aio (1.85.1) logs tracebacks for disconnected callers.
logging.getLogger("grpc._cython.cygrpc").addFilter(
    lambda record: not (record.exc_info and isinstance(record.exc_info[1], grpc.aio.InternalError))
)
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", 4 * MIB),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 30_000),
    # No limit, because with one the connection of a peer that reads nothing cannot be closed (1.85.1). Without it, gRPC
    # stops reading when 10 000 answers are unsent.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.max_frame_size", 16 * MIB - 1),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4 * MIB),
    # Bounds the memory of headers. A worker needs three.
    ("grpc.max_concurrent_streams", 128),
)
# gRPC would queue 4096 connections, which take a second to accept.
_BACKLOG = 512


class Listener:
    """Serves gRPC, on one event loop."""

    def __init__(self, protection: Protection, peer_log: PeerLog, refusals: Refusals) -> None:
        self._protection = protection
        self._peer_log = peer_log
        self._refusals = refusals
        self._health = Health("", *handlers.SERVICES)
        self._server: grpc.aio.Server | None = None

    @property
    def is_open(self) -> bool:
        """Whether the port is open."""
        return self._server is not None

    async def open(
        self, bind: str, first: FirstMessages, services: tuple[handlers.Service, ...], with_reflection: bool
    ) -> int:
        """Listen; return the port. Raises StartupError."""
        protection = self._protection
        access = protection.access
        door = () if access is None else (TokenInterceptor(access, self._peer_log, self._refusals),)
        self._server = grpc.aio.server(options=CHANNEL_OPTIONS, interceptors=door)
        self._server.add_generic_rpc_handlers((*services, handlers.health_handlers(first, self._health)))
        if with_reflection:
            names = (*handlers.SERVICES, HEALTH, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)
        try:
            if protection.certificates is None:
                port = self._server.add_insecure_port(bind)
            else:
                port = self._server.add_secure_port(bind, server_credentials(protection.certificates))
        except RuntimeError as error:
            raise StartupError(
                f"cannot listen on {bind}: another process has that port, or the address is not this machine's; stop "
                "that process, or choose another --bind (port 0 takes a free one)"
            ) from error
        await self._server.start()
        _limit_backlog(port)
        return port

    def set_health(self, *, serving: bool) -> None:
        """Set the reported health."""
        self._health.set_status(serving=serving)

    async def close(self, grace: float | None) -> None:
        """Stop within `grace` seconds. Idempotent."""
        if self._server is not None:
            await self._server.stop(grace)
            self._server = None


def _limit_backlog(port: int) -> None:
    for path in Path("/proc/self/fd").glob("*"):
        try:
            connection = socket.socket(fileno=int(path.name))
        except OSError:
            continue
        try:
            is_listening = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if is_listening and connection.family != socket.AF_UNIX and connection.getsockname()[1] == port:
                connection.listen(_BACKLOG)
        finally:
            connection.detach()
