"""A worker that reaches a server by its names: python -m tests.security.train_by_name CERTIFICATES NAME...

Both run in this process, with the folders of `gemps certs`. It prints how the commits travelled, with the lane and
without it.
"""

import asyncio
import sys
from pathlib import Path

import numpy as np
from gem_server.server import Server
from gem_server.settings import ServerSettings
from gem_worker.client import Client, ClientSettings, Observer

from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec

COUNT = 64
LAYOUT = Layout([TensorSpec("weight", (COUNT,), ElementType.FLOAT32, TensorKind.PARAMETER)])
PATIENCE = 30.0


def train(address: str, folder: Path, *, lane: bool) -> str:
    settings = ClientSettings(credentials=folder / "worker", lane=lane, connect_timeout=PATIENCE)
    held = memoryview(bytearray(4 * COUNT))
    with Client(address, worker_name="ada", layout=LAYOUT, settings=settings) as client:
        if not client.join().has_parameters:
            client.initialize(held)
        client.pull(held)
        client.commit(memoryview(np.full(COUNT, 1e-3, np.float32).tobytes()), held)
        watching = ClientSettings(credentials=folder / "observer")
        with Observer(address, wait=PATIENCE, settings=watching) as observer:
            return str(observer.get_status()["workers"][0]["transport"])


async def main(folder: Path, names: list[str]) -> None:
    server = Server(ServerSettings(bind="127.0.0.1:0", credentials=folder / "server"))
    port = await server.start()
    for name in names:
        for lane in (True, False):
            print(await asyncio.to_thread(train, f"{name}:{port}", folder, lane=lane))
    await server.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))
