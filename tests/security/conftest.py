"""Fixtures: an authority, and servers and clients with what it signed; everything is closed at the test's end."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gem_worker.client import ClientSettings, Observer

from tests.client.conftest import connect, proxied, serve
from tests.security.authority import Authority

__all__ = ["authority", "connect", "observe", "proxied", "serve", "stranger", "tls", "tls_client"]

Observe = Callable[..., Observer]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    """Another one, whom nobody was told to believe."""
    return Authority(tmp_path, "stranger")


@pytest.fixture
def tls(authority: Authority, tmp_path: Path) -> dict[str, Any]:
    """Settings of a server with TLS."""
    certificate, key = authority.pair("server").write(tmp_path, "server")
    return {"tls_cert": certificate, "tls_key": key}


@pytest.fixture
def tls_client(authority: Authority) -> dict[str, Any]:
    """Settings of a client that believes the authority."""
    return {"tls_ca": str(authority.file)}


@pytest.fixture
def observe() -> Iterator[Observe]:
    """Makes observers; settings by their names."""
    made: list[Observer] = []

    def make(address: str, *, wait: float = 0.0, **settings: Any) -> Observer:
        observer = Observer(address, wait=wait, settings=ClientSettings(backoff_first=0.05, **settings))
        made.append(observer)
        return observer

    yield make
    for observer in made:
        observer.close()
