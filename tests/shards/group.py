"""Several servers with one model, in this process, and workers that drive them."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from gem_worker.client import Client, ClientSettings
from numpy.typing import NDArray

from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec
from gem_core.payload import PayloadFormat
from gem_core.wire_types import WireType
from tests.client.real_server import RealServer

Float32 = NDArray[np.float32]

# Cuts into 2, 3 and 5 shards go through tensors of each role.
MODEL = Layout(
    [
        TensorSpec("embedding", (30, 50), ElementType.FLOAT32, TensorKind.PARAMETER, is_embedding=True),
        TensorSpec("weight", (41, 50), ElementType.FLOAT32, TensorKind.PARAMETER),
        TensorSpec("bias", (2_003,), ElementType.FLOAT32, TensorKind.PARAMETER),
        TensorSpec("steps", (), ElementType.INT64, TensorKind.BUFFER),
    ]
)


# Settings of all servers.
SHARED = (
    "rule",
    "durability",
    "resume",
    "staging_buffers",
    "stall_timeout",
    "session_timeout",
    "chunk_bytes",
    "tls_cert",
    "tls_key",
)


class Group:
    """The servers of one run, shard 0 first."""

    def __init__(self, servers: list[RealServer]) -> None:
        self.servers = servers

    @property
    def address(self) -> str:
        return self.servers[0].address

    def stop(self) -> None:
        """Stop all at once, as by SIGTERM."""
        with ThreadPoolExecutor(len(self.servers)) as threads:
            list(threads.map(RealServer.stop, self.servers))

    def clocks(self) -> list[int]:
        return [server.clock() for server in self.servers]

    def parameters(self) -> Float32:
        return np.concatenate([server.parameters() for server in self.servers])


def start(
    shards: int,
    folder: Path | None = None,
    *,
    sockets: Path | None = None,
    of_secondaries: dict[str, Any] | None = None,
    **settings: Any,
) -> Group:
    """Start servers at once; settings of the primary by their names, data directories below `folder`.

    `sockets`: folder for shared memory's. `of_secondaries`: settings that only they have.
    """
    address = f"127.0.0.1:{free_port()}"
    shared = {name: settings[name] for name in SHARED if name in settings} | (of_secondaries or {})

    def one(index: int) -> RealServer:
        own = {"primary": address, **shared} if index else {"bind": address, **settings}
        if sockets is not None:
            own["shared_memory_socket"] = sockets / str(index)
        if folder is not None:
            own["data_dir"] = folder / str(index)
        return RealServer(shard=f"{index}/{shards}", **own)

    with ThreadPoolExecutor(shards) as threads:
        return Group(list(threads.map(one, range(shards))))


@contextmanager
def serving(
    shards: int, folder: Path | None = None, *, sockets: Path | None = None, **settings: Any
) -> Iterator[Group]:
    """As `start`; stop them in the end."""
    group = start(shards, folder, sockets=sockets, **settings)
    try:
        yield group
    finally:
        group.stop()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Worker:
    """A worker whose deltas follow from its number and step."""

    def __init__(
        self,
        address: str,
        number: int,
        layout: Layout = MODEL,
        of_client: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._random = np.random.default_rng(number)
        self._layout = layout
        values = {"backoff_first": 0.01, "backoff_limit": 0.05, "connect_timeout": 60.0} | (of_client or {})
        settings = ClientSettings(**values)
        self.client = Client(address, worker_name=f"worker-{number}", layout=layout, settings=settings, **options)
        self.into = memoryview(bytearray(self.wire_bytes(WireType.FLOAT32)))
        self.steps = 0

    @property
    def parameters(self) -> Float32:
        return np.frombuffer(self.into, np.float32, self._layout.parameter_count).copy()

    @property
    def buffers(self) -> int:
        return int(np.frombuffer(self.into[-8:], np.int64)[0])

    def wire_bytes(self, wire_type: WireType) -> int:
        """Bytes of a delta."""
        return PayloadFormat(self._layout, wire_type).byte_count

    def begin(self) -> None:
        """Join; upload the first parameters unless there are some."""
        if not self.client.join().has_parameters:
            first = np.random.default_rng(7).standard_normal(self._layout.parameter_count).astype(np.float32)
            self.client.initialize(memoryview(first.tobytes() + bytes(8)))

    def pull(self) -> int:
        """Pull; return the clock."""
        return self.client.pull(self.into).clock

    def delta(self) -> memoryview:
        self.steps += 1
        values = (0.05 * self._random.standard_normal(self._layout.parameter_count)).astype(np.float32)
        values[self._random.random(values.size) < 0.2] = 0
        return memoryview(values.tobytes() + np.int64(self.steps).tobytes())

    def commit(self, **options: Any) -> Any:
        """Commit the next delta; return the outcome."""
        return self.client.commit(self.delta(), self.into, loss=1.0, samples=4, **options)

    def end(self) -> None:
        self.client.leave("done")
        self.client.close()
