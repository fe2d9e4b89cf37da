"""An HTTP listener with security headers and limits."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gem_server.errors import StartupError
from gem_server.web.hosts import Hosts

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
MAX_CONNECTIONS = 128
SILENT_SECONDS = 15.0
# Rate limit over all clients; excess requests wait.
REQUESTS_PER_SECOND, BURST_SECONDS = 200, 0.5
CLOSE_SECONDS = 1.0

# For malformed requests: status 400, no log line.
_requests = logging.getLogger(f"{__name__}.requests")
_requests.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)))

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WebServer:
    """The listener of --dashboard."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._runner: web.AppRunner | None = None
        self._listening: asyncio.Server | None = None
        self.url = ""
        self._paid_until = 0.0  # event loop's clock

    async def open(
        self, address: str, routes: Iterable[web.RouteDef], end_streams: Callable[[], Awaitable[None]]
    ) -> None:
        """Serve GET and HEAD at HOST:PORT, and set `url`.

        `end_streams` ends streaming replies. Raises StartupError.
        """
        app = web.Application(middlewares=[self._admit])
        app.add_routes(list(routes))

        async def on_shutdown(_: web.Application) -> None:
            await end_streams()

        app.on_shutdown.append(on_shutdown)
        app.on_response_prepare.append(_add_headers)
        runner = web.AppRunner(
            app,
            access_log=None,
            logger=_requests,
            handle_signals=False,
            shutdown_timeout=CLOSE_SECONDS,
            keepalive_timeout=SILENT_SECONDS,
            lingering_time=0,  # requests have no body to read
        )
        await runner.setup()
        host, _, port = address.rpartition(":")

        def make_protocol() -> asyncio.BaseProtocol:
            server = runner.server
            return server() if server is not None and len(server.connections) < MAX_CONNECTIONS else _NoRoom()

        try:
            listening = await asyncio.get_running_loop().create_server(make_protocol, host.strip("[]"), int(port))
        except OSError as error:
            await runner.cleanup()
            raise StartupError(
                f"--dashboard {address}: cannot listen there ({error.strerror or error}): choose another address, or "
                "port 0 for a free one"
            ) from error
        self._runner = runner
        self._listening = listening
        self.url = f"http://{host}:{listening.sockets[0].getsockname()[1]}/"

    async def close(self) -> None:
        """Close the listener and its replies. Idempotent."""
        if self._listening is not None:
            self._listening.close()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        now = asyncio.get_running_loop().time()
        self._paid_until = max(self._paid_until, now - BURST_SECONDS) + 1 / REQUESTS_PER_SECOND
        await asyncio.sleep(max(0.0, self._paid_until - now))
        if request.headers.get("Host") not in self._hosts:
            raise web.HTTPMisdirectedRequest(
                text="this server is not known by that name: use its address in figures, or start it with "
                "--dashboard-hosts NAME\n"
            )
        return await handler(request)


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.pop("Server", None)


class _NoRoom(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
