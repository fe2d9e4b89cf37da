"""The real server, on a thread with its own event loop, so that blocking clients can be tested against it."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import numpy as np
from gem_server.server import Server
from gem_worker.client import Client
from numpy.typing import NDArray

from gem_core.layout import Layout
from tests.client.models import buffer, payload
from tests.server_settings import server_settings
from tests.waiting import PATIENCE, eventually_async

Result = TypeVar("Result")


class RealServer:
    """A server that was started; the rule is `downpour` (theta += delta) unless a test says otherwise."""

    def __init__(self, **settings: Any) -> None:
        defaults: dict[str, Any] = {"bind": "127.0.0.1:0", "rule": "downpour", "threads": 1}
        self._settings = defaults | settings
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-server", daemon=True)
        self._thread.start()
        self.server = Server(server_settings(**self._settings))
        self.port = self._await(self.server.start())
        self._running = True

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def clock(self) -> int:
        return self.in_loop(lambda: self.server.central.clock)

    def parameters(self) -> NDArray[np.float32]:
        return self.in_loop(lambda: self.server.central.parameters.copy())

    def stop(self) -> None:
        """As by SIGTERM: drain, checkpoint where there is a data_dir, end."""
        if self._running:
            self._running = False
            self._await(self.server.stop())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def again(self, **settings: Any) -> "RealServer":
        """Another server on the same port, once this one has stopped."""
        self.stop()
        return RealServer(**(self._settings | {"bind": self.address} | settings))

    def _await(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(2 * PATIENCE)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until this holds in the server's thread."""
        self._await(eventually_async(condition))

    def in_loop(self, function: Callable[[], Result]) -> Result:
        """Call this in the server's thread, where its objects live."""

        async def call() -> Result:
            return function()

        return self._await(call())


def begin(client: Client, layout: Layout) -> memoryview:
    """Join, initialize with zeros if need be, pull."""
    if not client.join().has_parameters:
        client.initialize(payload(layout, 0.0))
    everything = buffer(layout)
    client.pull(everything)
    return buffer(layout)
