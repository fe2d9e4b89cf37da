"""Servers in processes of their own, and the memory they take."""

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from gem_cli.setting_keys import nested
from google.protobuf.message import Message

from tests.server_settings import keys
from tests.waiting import eventually_async
from tests.wire import doomed_client, serve_process
from tests.wire.calls import Trust
from tests.wire.lane import hello
from tests.wire.serving import Endpoint
from tests.wire.worker import RawWorker

START_PATIENCE = 120.0


class ServerProcess(Endpoint):
    """A server that can be measured from outside."""

    def __init__(self, address: str, process: asyncio.subprocess.Process) -> None:
        super().__init__(address)
        self.process = process

    def anonymous_bytes(self) -> int:
        """What the process holds for itself now (not pages of files, which the system may drop)."""
        return _kib(Path(f"/proc/{self.process.pid}/smaps_rollup"), "Anonymous")

    def highest_anonymous_bytes(self) -> int:
        """An upper bound of the peak: the highest resident size, less the files' part of it now."""
        status = Path(f"/proc/{self.process.pid}/status")
        return _kib(status, "VmHWM") - _kib(status, "RssFile")


def _kib(path: Path, field: str) -> int:
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise AssertionError(f"{path} has no {field}")


@asynccontextmanager
async def server_process(directory: Path, **settings: Any) -> AsyncIterator[ServerProcess]:
    """A server process, ended with SIGTERM; it must exit with 0."""
    ready = directory / "ready.json"
    told = {"bind": "127.0.0.1:0", "ready_file": str(ready)} | dict(Trust.of_servers) | settings
    process = await asyncio.create_subprocess_exec(
        sys.executable, serve_process.__file__, json.dumps(nested(keys(told)))
    )
    try:
        await eventually_async(lambda: ready.exists() or process.returncode is not None, patience=START_PATIENCE)
        assert ready.exists(), "the server process ended before it served"
        server = ServerProcess(json.loads(ready.read_text())["address"], process)
        try:
            yield server
        finally:
            await server.close()
        if process.returncode is None:
            process.terminate()
        assert await asyncio.wait_for(process.wait(), START_PATIENCE) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def doomed_process(
    worker: RawWorker, folder: Path, method: str, streams: Sequence[Sequence[Message]]
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A client process that has sent these messages as this worker; killed (-9) in the end, if the test did not.

    Commits go over the lane where the worker's do.
    """
    address, first, authority = worker.address, list[Message](), str(Trust.authority or "")
    if method == "Commit" and worker.uses_lane:
        membership = worker.membership
        method, address = "Lane", f"{address.rpartition(':')[0]}:{membership.lane_port}"
        first = [hello(worker.session_id, membership.incarnation)]
    files = [folder / f"stream-{number}" for number in range(len(streams))]
    for file, messages in zip(files, streams, strict=True):
        doomed_client.write_messages(file, [message.SerializeToString() for message in (*first, *messages)])
    async with killed_script(doomed_client, address, method, authority, *map(str, files), says="sent") as process:
        yield process


@asynccontextmanager
async def killed_script(script: ModuleType, *arguments: str, says: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process of this script, which has said its first line; killed (-9) in the end, if the test did not."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, script.__file__, *arguments, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), START_PATIENCE) == f"{says}\n".encode()
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class PeakMeter:
    """Samples a process's anonymous memory from a thread of its own, every few milliseconds."""

    def __init__(self, server: ServerProcess) -> None:
        self.peak = 0
        self._server = server
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(0.01):
            self.peak = max(self.peak, self._server.anonymous_bytes())
