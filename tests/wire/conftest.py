"""Fixtures: servers, each stopped at the test's end."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from tests.wire.serving import Serving
from tests.wire.worker import RawWorker

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


@pytest.fixture(params=["ordinary port", "commit port"])
def either_port(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit calls go to gRPC's port, then once more to the server's own."""
    monkeypatch.setattr(RawWorker, "at_commit_port", request.param == "commit port")
