"""The port: gRPC's server with the options of its channels, the door before it, health and reflection beside it."""

import logging

import grpc
from grpc_reflection.v1alpha import reflection

from gem_server.errors import StartupError
from gem_server.security.protection import Protection
from gem_server.service import handlers
from gem_server.service.door import TokenInterceptor, server_credentials
from gem_server.service.first_message import FirstMessages
from gem_server.service.health import SERVICE as HEALTH
from gem_server.service.health import Health
from gem_server.service.refusal_log import RefusalLog

MIB = 1024 * 1024
# grpc.aio (1.85.1) logs a traceback when a caller goes while its answer is being sent, after the handler has returned.
logging.getLogger("grpc._cython.cygrpc").addFilter(
    lambda record: not (record.exc_info and isinstance(record.exc_info[1], grpc.aio.InternalError))
)
# DESIGN.md section 3. The receive limit leaves room for a 2 MiB chunk and its header.
MAX_RECEIVE_BYTES = 2 * MIB + 64 * 1024
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
    ("grpc.max_send_message_length", 4 * MIB),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 30_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 30_000),
    ("grpc.http2.max_frame_size", 16 * MIB - 1),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4 * MIB),
    # Bounds the headers that one connection can make gRPC keep. A worker has three calls at most; a proxy that needs
    # more streams opens more connections.
    ("grpc.max_concurrent_streams", 128),
)


class Listener:
    """Takes calls from `open` to `close`; both on one event loop. Until it is told, it says that nobody serves."""

    def __init__(self, protection: Protection) -> None:
        self._protection = protection
        self._health = Health("", handlers.SERVICE)
        self._server: grpc.aio.Server | None = None

    @property
    def is_open(self) -> bool:
        """Whether it was opened, and not closed since."""
        return self._server is not None

    async def open(self, bind: str, first: FirstMessages, service: handlers.Service, with_reflection: bool) -> int:
        """Listen; returns the port. Raises StartupError when the address cannot be had."""
        protection = self._protection
        door = () if protection.access is None else (TokenInterceptor(protection.access, RefusalLog()),)
        self._server = grpc.aio.server(options=CHANNEL_OPTIONS, interceptors=door)
        self._server.add_generic_rpc_handlers((service, handlers.health_handlers(first, self._health)))
        if with_reflection:
            names = (handlers.SERVICE, HEALTH, reflection.SERVICE_NAME)
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
        return port

    def tell_health(self, *, serving: bool) -> None:
        """What gRPC's health service says from now on."""
        self._health.tell(serving=serving)

    async def close(self, grace: float | None) -> None:
        """End: calls that run may go on for `grace` seconds. Harmless a second time."""
        if self._server is not None:
            await self._server.stop(grace)
            self._server = None
