"""Fixtures: servers, each stopped at the test's end."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest_asyncio

from tests.wire.serving import Serving

Serve = Callable[..., Awaitable[Serving]]


@pytest_asyncio.fixture
async def serve() -> AsyncIterator[Serve]:
    """Makes servers with the given settings."""
    started: list[Serving] = []

    async def start(**settings: Any) -> Serving:
        serving = await Serving.start(**settings)
        started.append(serving)
        return serving

    yield start
    for serving in started:
        await serving.close()
        await serving.stop()


@pytest_asyncio.fixture
async def serving(serve: Serve) -> Serving:
    """A server with default settings."""
    return await serve()
