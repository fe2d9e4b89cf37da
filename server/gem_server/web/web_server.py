"""The HTTP listeners, with what every answer of theirs must have."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gem_server.errors import StartupError
from gem_server.web.hosts import Hosts

# Nothing comes from elsewhere, nobody may frame the page, nothing is kept.
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
# Connections at one address: 16 viewers with a few each, scrapers, and silent ones, which end soon.
MAX_CONNECTIONS = 128
SILENT_SECONDS = 15.0
# Requests a second of all clients together, after a burst; more wait. A page load makes some 20.
REQUESTS_PER_SECOND, BURST_SECONDS = 200, 0.5
# How long streams of events may take to end when the server stops.
CLOSE_SECONDS = 1.0

# What a client sends that is not HTTP gets status 400, and no line in the log.
_requests = logging.getLogger(f"{__name__}.requests")
_requests.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)))

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WebServer:
    """One listener a set of routes; on the event loop that `open` was called on. `urls` has them by setting."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._runners: list[web.AppRunner] = []
        self._listening: list[asyncio.Server] = []
        self.urls: dict[str, str] = {}
        self._paid_until = 0.0  # by the event loop's clock

    async def open(
        self,
        setting: str,
        address: str,
        routes: Iterable[web.RouteDef],
        end_streams: Callable[[], Awaitable[None]] | None = None,
    ) -> str:
        """Listen at `address` (HOST:PORT; port 0: a free one) for GET and HEAD; returns the page's URL.

        `end_streams` is called when the server stops: answers that go on and on should end then, or are cut.

        Raises StartupError, naming `setting`, when the address cannot be had.
        """
        app = web.Application(middlewares=[self._look_at])
        app.add_routes(list(routes))

        async def on_shutdown(_: web.Application) -> None:
            if end_streams is not None:
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
            lingering_time=0,  # nothing here has a use for a request's body: close instead of reading it
        )
        await runner.setup()
        host, _, port = address.rpartition(":")

        def take() -> asyncio.BaseProtocol:
            server = runner.server
            return server() if server is not None and len(server.connections) < MAX_CONNECTIONS else _NoRoom()

        try:
            listening = await asyncio.get_running_loop().create_server(take, host.strip("[]"), int(port))
        except OSError as error:
            await runner.cleanup()
            raise StartupError(
                f"{setting} {address}: cannot listen there ({error.strerror or error}): choose another address, or "
                "port 0 for a free one"
            ) from error
        self._runners.append(runner)
        self._listening.append(listening)
        self.urls[setting] = f"http://{host}:{listening.sockets[0].getsockname()[1]}/"
        return self.urls[setting]

    async def close(self) -> None:
        """End all listeners, and what they still send."""
        for listening in self._listening:
            listening.close()
        runners, self._runners = self._runners, []
        for runner in runners:
            await runner.cleanup()

    @web.middleware
    async def _look_at(self, request: web.Request, handler: Handler) -> web.StreamResponse:
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
        """Close it at once."""
        transport.close()
