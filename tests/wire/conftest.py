"""Fixtures: servers, each stopped at the test's end."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.security.authority import Authority
from tests.wire.calls import Trust
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


@pytest.fixture(params=["gRPC", "lane"])
def each_transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Commit calls go over gRPC, then once more over the lane."""
    return _choose(request, monkeypatch)


@pytest.fixture(params=["gRPC", "lane", "lane with TLS"])
def each_transport_and_tls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same, and once more with TLS, at both ports."""
    return _choose(request, monkeypatch)


def _choose(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(RawWorker, "uses_lane", request.param != "gRPC")
    if request.param == "lane with TLS":
        folder: Path = request.getfixturevalue("tmp_path_factory").mktemp("tls")
        authority = Authority(folder)
        certificate, key = authority.pair("server").write(folder, "server")
        monkeypatch.setattr(Trust, "authority", authority.file)
        monkeypatch.setattr(Trust, "of_servers", {"tls_cert": str(certificate), "tls_key": str(key)})
    chosen: str = request.param
    return chosen
