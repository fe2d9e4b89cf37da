"""Fixtures: servers, scripted and real, proxies, and clients; everything is closed at the test's end."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from gem_worker.client import Client, ClientEvent, ClientSettings, EventKind

from gem_core.layout import Layout
from gem_core.recipe import Recipe
from gem_core.wire_types import WireType
from tests.client.cutting_proxy import CuttingProxy
from tests.client.models import LARGE_CHUNK_BYTES
from tests.client.real_server import RealServer
from tests.client.scripted_server import ScriptedServer

Script = Callable[[Layout], ScriptedServer]


class Connected:
    """A client and the events it reported."""

    def __init__(self, address: str, layout: Layout, settings: dict[str, Any], **options: Any) -> None:
        # Pauses are short, because nobody has to be spared; patience is long, because machines may be slow.
        values = {"backoff_first": 0.01, "backoff_limit": 0.05, "connect_timeout": 60.0} | settings
        self.events: list[ClientEvent] = []
        self.client = Client(
            address,
            layout=layout,
            host_id="host",
            settings=ClientSettings(**values),
            on_event=self.events.append,
            **options,
        )

    def kinds(self) -> list[EventKind]:
        return [event.kind for event in self.events]


Connect = Callable[..., Connected]
Serve = Callable[..., RealServer]
Proxied = Callable[[RealServer | ScriptedServer], CuttingProxy]


@pytest.fixture
def script() -> Iterator[Script]:
    """Starts scripted servers, whose parameters are all 0."""
    started: list[ScriptedServer] = []

    def start(layout: Layout) -> ScriptedServer:
        server = ScriptedServer(layout, LARGE_CHUNK_BYTES, np.zeros(layout.parameter_count, np.float32))
        server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Makes clients, which have not joined yet; settings by their names. `clock` and `sleep` replace a retry's time."""
    made: list[Connected] = []

    def make(
        address: str,
        layout: Layout,
        *,
        name: str = "worker",
        parameter_wire_types: tuple[WireType, ...] = (WireType.FLOAT32,),
        recipe: Recipe | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] | None = None,
        **settings: Any,
    ) -> Connected:
        connected = Connected(
            address,
            layout,
            settings,
            worker_name=name,
            parameter_wire_types=parameter_wire_types,
            recipe=recipe,
            clock=clock,
            sleep=sleep,
        )
        made.append(connected)
        return connected

    yield make
    for connected in made:
        connected.client.close()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts real servers; settings by their names."""
    started: list[RealServer] = []

    def start(**settings: Any) -> RealServer:
        server = RealServer(**({"chunk_bytes": LARGE_CHUNK_BYTES} | settings))
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def proxied() -> Iterator[Proxied]:
    """Puts a proxy, whose connections can be cut, before a server."""
    made: list[CuttingProxy] = []

    def make(server: RealServer | ScriptedServer) -> CuttingProxy:
        made.append(CuttingProxy(server.port))
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()
