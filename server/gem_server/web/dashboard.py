"""The page that shows the run live (/), and what it shows (/events: server-sent events).

While somebody looks on, one task asks for status and history and makes JSON of them, once for all viewers. With no
viewer there is no such task. The events:

    status    RunStatus, as gemps.plain_values has it, about once a second. NaN and infinities are null. Of a run with
              many workers the first MAX_WORKERS, before all those that need a look; `workers_left_out` counts the rest.
              What workers would only repeat is left out: bounds of the histogram of staleness, the one of waiting.
    history   GetHistoryResponse, what is new of it, pi in four decimals; and `whole`: it replaces what was sent before;
              `has_factors`: whether the rule has a pi for each element.
    end       the server ends: there will be no further events.
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

from gem_server.errors import Refusal

STATIC = Path(__file__).with_name("static")

MAX_VIEWERS = 16
# Rows that a table can be read with, and that a browser can renew each second.
MAX_WORKERS = 256
INTERVAL_SECONDS = 1.0
# Between two rounds at least, whoever comes.
SHORTEST_SECONDS = 0.1
# What an event costs may be this part of a processor; of many workers news come less often. A page that hears nothing
# for 6 s says so.
SHARE_OF_PROCESSOR = 0.1
LONGEST_SECONDS = 3.0
# Events for a viewer that does not read: then it is cut off, and comes again if it is alive.
MAX_UNREAD = 20
# And what the system keeps for it: a round of many workers, or a few hundred of few.
SEND_BUFFER_BYTES = 256 * 1024
# How long the last round may take when the server ends.
LAST_ROUND_SECONDS = 0.5
# What browsers wait before they come again.
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
    """Serves the page and its events, on the event loop's thread.

    Args:
        report: the server's status, when it may be shown.
        history: what ended after so many seconds of training.
        has_factors: whether the run's rule has a pi for each element.
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
        # What those who have looked on for long have seen of the history.
        self._generation: int | None = None
        self._seen = 0.0

    def routes(self) -> list[web.RouteDef]:
        """The page, its parts and its events."""
        parts = [web.get(path, self._serve_file) for path in self._files]
        return [*parts, web.get("/events", self._serve_events)]

    async def close(self) -> None:
        """Send a last round and the end to all viewers; those who come later are refused. Harmless a second time."""
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
            with contextlib.suppress(ConnectionError):  # it went, or was cut off
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
        """Send rounds as long as somebody looks on, and a last one when the server ends."""
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
        except Refusal:
            logger.info("the dashboard ends: what the server knows by now is not to be told any more")
        except Exception:
            logger.exception("the dashboard cannot show the run; viewers are let go")
        finally:
            for viewer in self._viewers:
                viewer.let_go(_event("end", {}) if self._closing else b"")

    async def _round(self) -> float:
        """Ask once, and send to each viewer what it has not seen; returns processor seconds."""
        newcomers = [viewer for viewer in self._viewers if viewer.is_new]
        others = [viewer for viewer in self._viewers if not viewer.is_new]
        news = self._history(self._seen)
        changed = news.generation != self._generation
        whole = self._history(0.0) if changed or newcomers else None
        status = await self._report()  # waits until all of this may be told
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
        """The events of a round, on any thread (empty: there is nothing to tell), and the processor seconds it took."""
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
        del told["generation"]  # of more digits than a page's numbers have; `whole` tells it
        return _event("history", told)


class _Viewer:
    """A connection, and what is still to be sent there; None is the end of it."""

    def __init__(self, request: web.Request) -> None:
        self._transport = request.transport
        self.events: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_UNREAD)
        self.is_new = True
        connection = self._transport.get_extra_info("socket") if self._transport is not None else None
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)

    def send(self, event: bytes) -> None:
        """Put it on its way, if it is not empty; cut the viewer off if it has not read what is on its way already."""
        if not event:
            return
        if self.events.qsize() < MAX_UNREAD - 2:  # room for an end
            self.events.put_nowait(event)
        else:
            self._cut_off()

    def let_go(self, last: bytes) -> None:
        """Close the connection when all is sent, with `last` if that is not empty."""
        with contextlib.suppress(asyncio.QueueFull):  # it is cut off already
            if last:
                self.events.put_nowait(last)
            self.events.put_nowait(None)

    def _cut_off(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _files(folder: Path) -> dict[str, tuple[bytes, str]]:
    """(content, type) of each file in the folder, by its path in a URL: some 250 KiB. No other file is served."""
    files = {
        f"/{path.relative_to(folder).as_posix()}": (path.read_bytes(), _CONTENT_TYPES[path.suffix])
        for path in folder.rglob("*")
        if path.suffix in _CONTENT_TYPES
    }
    return {"/": files["/index.html"], **files}


def _plain_status(status: status_pb2.RunStatus) -> dict[str, Any]:
    """The status as the event has it; the message is changed."""
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
    """As plain_values has it, but in four decimals: there are tens of thousands, and more cannot be seen."""
    return {
        "run_seconds": seen.run_seconds,
        "clock": seen.clock,
        "samples": seen.samples,
        "mean_pi": [None if value != value else round(value, 4) for value in seen.mean_pi],
        "median_pi": [None if value != value else round(value, 4) for value in seen.median_pi],
    }


def _finite(value: Any) -> Any:
    """The same with None in place of NaN and infinities, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return value
