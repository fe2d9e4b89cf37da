"""The page (/) and its events (/events), encoded once for all viewers.

status    RunStatus, each second; NaN and infinities are null. At most MAX_WORKERS workers, unwell ones first;
          `workers_left_out` counts the rest.
history   New parts of GetHistoryResponse; `whole`: replaces all before; `has_factors`: the rule has pi.
end       The server stops; no more events.
"""

import asyncio
import contextlib
import json
import logging
import math
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from time import thread_time
from typing import Any

from aiohttp import web
from gemps.plain_values import to_dict
from gemps.v1 import history_pb2, status_pb2

from gem_server.errors import RefusedError

STATIC = Path(__file__).with_name("static")

MAX_VIEWERS = 16
MAX_WORKERS = 256
INTERVAL_SECONDS = 1.0
SHORTEST_SECONDS = 0.1
# Of a processor; the page reports silence after 6 s.
SHARE_OF_PROCESSOR = 0.1
LONGEST_SECONDS = 3.0
# Queue limit, after which the viewer is disconnected.
MAX_UNREAD = 20
SEND_BUFFER_BYTES = 256 * 1024
LAST_ROUND_SECONDS = 0.5
RECONNECT_MILLISECONDS = 1000

_CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
_WELL = (status_pb2.WORKER_CONDITION_WELL, status_pb2.WORKER_CONDITION_UNSPECIFIED)

logger = logging.getLogger(__name__)


class Dashboard:
    """Serves the page; event-loop thread only.

    `history` takes seconds of training.
    """

    def __init__(
        self,
        report: Callable[[], Awaitable[status_pb2.RunStatus]],
        history: Callable[[float], history_pb2.GetHistoryResponse],
        *,
        has_factors: bool,
    ) -> None:
        self._report = report
        self._history = history
        self._has_factors = has_factors
        self._files = _files(STATIC)
        self._viewers: set[_Viewer] = set()
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._closing = False
        # History sent to established viewers.
        self._generation: int | None = None
        self._seen = 0.0

    def routes(self) -> list[web.RouteDef]:
        """The routes."""
        parts = [web.get(path, self._serve_file) for path in self._files]
        return [*parts, web.get("/events", self._serve_events)]

    async def close(self) -> None:
        """Send a last round and `end`; refuse new viewers. Idempotent."""
        self._closing = True
        self._wanted.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=LAST_ROUND_SECONDS)
            self._task.cancel()

    async def _serve_file(self, request: web.Request) -> web.Response:
        body, content_type = self._files[request.path]
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _serve_events(self, request: web.Request) -> web.StreamResponse:
        if self._closing:
            raise web.HTTPServiceUnavailable(text="the server is shutting down\n")
        if len(self._viewers) >= MAX_VIEWERS:
            raise web.HTTPServiceUnavailable(
                text=f"{MAX_VIEWERS} viewers look on already: close one, or watch with gemps status --watch\n",
                headers={"Retry-After": "5"},
            )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if request.method == "HEAD":
            return response
        viewer = _Viewer(request)
        self._viewers.add(viewer)
        try:
            with contextlib.suppress(ConnectionError):  # disconnected
                await response.prepare(request)
                await response.write(b"retry: %d\n\n" % RECONNECT_MILLISECONDS)
                self._show_newcomer()
                while (event := await viewer.events.get()) is not None:
                    await response.write(event)
        finally:
            self._viewers.discard(viewer)
        return response

    def _show_newcomer(self) -> None:
        self._wanted.set()
        if self._task is None or self._task.done():
            self._generation = None
            self._task = asyncio.create_task(self._show())

    async def _show(self) -> None:
        try:
            while self._viewers:
                self._wanted.clear()
                cost = await self._round()
                if self._closing:
                    break
                await asyncio.sleep(SHORTEST_SECONDS)
                pause = min(max(INTERVAL_SECONDS, cost / SHARE_OF_PROCESSOR), LONGEST_SECONDS)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wanted.wait(), pause - SHORTEST_SECONDS)
        except RefusedError:
            logger.info("the dashboard ends: the server does not report any more")
        except Exception:
            logger.exception("the dashboard cannot show the run; viewers are disconnected")
        finally:
            for viewer in self._viewers:
                viewer.let_go(_event("end", {}) if self._closing else b"")

    async def _round(self) -> float:
        newcomers = [viewer for viewer in self._viewers if viewer.is_new]
        others = [viewer for viewer in self._viewers if not viewer.is_new]
        news = self._history(self._seen)
        changed = news.generation != self._generation
        whole = self._history(0.0) if changed or newcomers else None
        status = await self._report()  # waits until all this is durable
        told, new, all_of_it, cost = await asyncio.to_thread(self._encode, status, None if changed else news, whole)
        for viewer in newcomers:
            viewer.send(told)
            viewer.send(all_of_it)
            viewer.is_new = False
        for viewer in others:
            viewer.send(told)
            viewer.send(all_of_it if changed else new)
        self._generation = news.generation
        ends = [one.ends for one in (whole if changed and whole is not None else news).intervals]
        self._seen = ends[-1] if ends else 0.0 if changed else self._seen
        return cost

    def _encode(
        self,
        status: status_pb2.RunStatus,
        news: history_pb2.GetHistoryResponse | None,
        whole: history_pb2.GetHistoryResponse | None,
    ) -> tuple[bytes, bytes, bytes, float]:
        """Events (empty: none) and processor seconds. Any thread."""
        began = thread_time()
        told = _event("status", _finite(_plain_status(status)))
        new = b""
        if news is not None and (news.intervals or news.evaluations or news.tensors.columns):
            new = self._history_event(news, whole=False)
        all_of_it = self._history_event(whole, whole=True) if whole is not None else b""
        return told, new, all_of_it, thread_time() - began

    def _history_event(self, seen: history_pb2.GetHistoryResponse, *, whole: bool) -> bytes:
        columns = [_column(one) for one in seen.tensors.columns]
        tensors = {"names": list(seen.tensors.names) if columns else [], "columns": columns}
        seen.ClearField("tensors")
        told = {**_finite(to_dict(seen)), "tensors": tensors, "whole": whole, "has_factors": self._has_factors}
        del told["generation"]  # exceeds JavaScript's integers; see `whole`
        return _event("history", told)


class _Viewer:
    def __init__(self, request: web.Request) -> None:
        self._transport = request.transport
        self.events: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_UNREAD)
        self.is_new = True
        connection = self._transport.get_extra_info("socket") if self._transport is not None else None
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)

    def send(self, event: bytes) -> None:
        """Queue a non-empty event, or disconnect."""
        if not event:
            return
        if self.events.qsize() < MAX_UNREAD - 2:  # leave room for `let_go`
            self.events.put_nowait(event)
        else:
            self._cut_off()

    def let_go(self, last: bytes) -> None:
        """Close after all events and `last`."""
        with contextlib.suppress(asyncio.QueueFull):  # disconnected already
            if last:
                self.events.put_nowait(last)
            self.events.put_nowait(None)

    def _cut_off(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _files(folder: Path) -> dict[str, tuple[bytes, str]]:
    files = {
        f"/{path.relative_to(folder).as_posix()}": (path.read_bytes(), _CONTENT_TYPES[path.suffix])
        for path in folder.rglob("*")
        if path.suffix in _CONTENT_TYPES
    }
    return {"/": files["/index.html"], **files}


def _plain_status(status: status_pb2.RunStatus) -> dict[str, Any]:
    left_out = len(status.workers) - MAX_WORKERS
    if left_out > 0:
        first = sorted(status.workers, key=lambda worker: worker.condition in _WELL)[:MAX_WORKERS]
        shown = sorted(first, key=lambda worker: worker.rank)
        del status.workers[:]
        status.workers.extend(shown)
    for worker in status.workers:
        worker.ClearField("wait")
        worker.staleness.ClearField("bounds")
    return {**to_dict(status), "workers_left_out": max(0, left_out)}


def _event(name: str, value: Mapping[str, Any]) -> bytes:
    data = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return f"event: {name}\ndata: {data}\n\n".encode()


def _column(seen: history_pb2.TensorColumn) -> dict[str, Any]:
    return {
        "run_seconds": seen.run_seconds,
        "clock": seen.clock,
        "samples": seen.samples,
        "mean_pi": [None if value != value else round(value, 4) for value in seen.mean_pi],
        "median_pi": [None if value != value else round(value, 4) for value in seen.median_pi],
    }


def _finite(value: Any) -> Any:
    """JSON lacks NaN and infinities."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return value
