"""TLS and token checks."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias
from urllib.parse import unquote

import grpc

from gem_server.errors import RefusedError
from gem_server.peer_log import PeerLog
from gem_server.security.access import Access
from gem_server.security.certificates import Certificates
from gem_server.security.watched_files import WatchedFiles
from gem_server.service.health import SERVICE as HEALTH
from gem_server.service.status_codes import abort
from gem_server.telemetry.refusals import Refusals

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"  # generic for mypy only


def server_credentials(certificates: WatchedFiles[Certificates]) -> grpc.ServerCredentials:
    """New connections get the newest certificates."""
    first = given = certificates.current()

    def changed() -> Any:
        """Runs on gRPC's threads before each handshake; None: unchanged."""
        nonlocal given
        newest = certificates.current()
        if newest is given:
            return None
        given = newest
        return _configuration(newest)

    return grpc.dynamic_ssl_server_credentials(_configuration(first), changed, first.client_ca is not None)


def _configuration(certificates: Certificates) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(certificates.key, certificates.certificate)], certificates.client_ca
    )


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Checks tokens before requests are read, except for the health service."""

    def __init__(self, access: Access, peer_log: PeerLog, refusals: Refusals) -> None:
        self._access = access
        self._peer_log = peer_log
        self._refusals = refusals

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Refuse, or return the call's handler."""
        details = handler_call_details
        if details.method.startswith(f"/{HEALTH}/"):
            return await continuation(details)
        try:
            self._access.check(details.method.rpartition("/")[2], authorization(details.invocation_metadata))
        except RefusedError as refusal:
            return self._refusing(refusal)
        return await continuation(details)

    def _refusing(self, refusal: RefusedError) -> Handler:
        async def refuse(_: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
            self._refusals.count(refusal.reason.name, refusal.message)
            address = address_of(context)
            host = address.rpartition(":")[0]
            self._peer_log.refuse(host, f"a call from {address} was refused: {refusal.message}")
            await abort(context, refusal)

        # Fits every kind: gRPC reads streams on demand.
        return grpc.stream_stream_rpc_method_handler(refuse)


def authorization(metadata: Any) -> str | None:
    """The `authorization` value."""
    for key, value in metadata or ():
        if key == "authorization":
            return value if isinstance(value, str) else value.decode("latin-1")
    return None


def address_of(context: Any) -> str:
    """The caller's address without gRPC's quoting."""
    return unquote(context.peer()).removeprefix("ipv4:").removeprefix("ipv6:")
