"""Viewers of the dashboard's events, as a browser's EventSource is one."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tests.wire.refusals import PATIENCE
from tests.wire.serving import Serving


def url(serving: Serving, path: str = "") -> str:
    return serving.server.dashboard_url + path


class Viewer:
    """An open stream of events."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def event(self) -> tuple[str, Any]:
        """The next event: (name, value); ("", None) when the stream is over."""
        name = ""
        async with asyncio.timeout(PATIENCE):
            while line := (await self.response.content.readline()).decode():
                field, _, text = line.rstrip("\n").partition(": ")
                if field == "event":
                    name = text
                elif field == "data":
                    return name, json.loads(text)
        return "", None

    async def next(self, name: str) -> Any:
        """The value of the next event of that name."""
        while True:
            seen, value = await self.event()
            assert seen, f"the stream is over, and there was no further {name}"
            if seen == name:
                return value


@asynccontextmanager
async def viewing(serving: Serving, count: int = 1) -> AsyncIterator[list[Viewer]]:
    """Viewers of which each was told the status once."""
    connector = aiohttp.TCPConnector(limit=0)
    # As large as an event with the history of a long run can be.
    async with aiohttp.ClientSession(connector=connector, read_bufsize=1 << 24) as session:
        viewers = [Viewer(await session.get(url(serving, "events"))) for _ in range(count)]
        for viewer in viewers:
            assert viewer.response.status == 200
            await viewer.next("status")
        yield viewers
        for viewer in viewers:
            viewer.response.close()
