"""A server that is killed and started again gets all its workers back by itself, however many they are."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from gemps.v1 import status_pb2

from tests.cli.processes import CLEAN, command
from tests.faults import light_worker
from tests.faults.processes import count, kill, start
from tests.figures import Figures
from tests.forms import FULL
from tests.waiting import eventually_async
from tests.wire.processes import ServerProcess

ON_TWO_CORES = 600.0  # seconds: 32 workers that import PyTorch; nothing is measured by it


def work(address: str, name: str) -> list[str]:
    """The command of one worker: in the quick suite one of the client library, in the full one a real one."""
    if not FULL:
        return [sys.executable, light_worker.__file__, address, name]
    return command("work", address, "--task=digits", "--model=mlp", "--device=cpu", f"--worker-name={name}")


@asynccontextmanager
async def workers_of(address: str, number: int, log: Path) -> AsyncIterator[dict[str, asyncio.subprocess.Process]]:
    """Worker processes by name; killed at the end of the block."""
    workers: dict[str, asyncio.subprocess.Process] = {}
    try:
        with log.open("wb") as output:
            for index in range(number):
                workers[f"worker-{index}"] = await asyncio.create_subprocess_exec(
                    *work(address, f"worker-{index}"), env=CLEAN, stdout=output, stderr=output
                )
        yield workers
    finally:
        for process in workers.values():
            if process.returncode is None:
                process.kill()
            await process.wait()


async def all_train(
    server: ServerProcess, workers: dict[str, asyncio.subprocess.Process], before: dict[str, int]
) -> status_pb2.RunStatus:
    """The first status in which each worker has committed more than before."""

    async def look() -> status_pb2.RunStatus | None:
        ended = [name for name, process in workers.items() if process.returncode is not None]
        assert not ended, f"ended by themselves: {ended}"
        status = await server.status()
        commits = commits_of(status)
        return status if all(commits.get(name, 0) > before.get(name, 0) for name in workers) else None

    found = await eventually_async(look, patience=ON_TWO_CORES)
    assert found is not None
    return found


def commits_of(status: status_pb2.RunStatus) -> dict[str, int]:
    return {worker.name: worker.commits for worker in status.workers}


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_all_workers_train_again_after_the_server_was_killed_under_them(tmp_path: Path, figures: Figures) -> None:
    number, kills = count(4, 32), count(1, 3)
    server = await start(tmp_path / "data", durability="commit", min_workers=number)
    since_kill, since_ready = [], []
    try:
        async with workers_of(server.address, number, tmp_path / "workers.log") as workers:
            for _ in range(kills):
                status = await all_train(server, workers, {})
                await kill(server)
                killed_at = time.monotonic()
                server = await start(tmp_path / "data", bind=server.address, durability="commit", min_workers=number)
                ready_at = time.monotonic()
                recovered = await server.status()
                assert recovered.commits >= status.commits
                await all_train(server, workers, commits_of(recovered))
                since_kill.append(time.monotonic() - killed_at)
                since_ready.append(time.monotonic() - ready_at)
    finally:
        await kill(server)
    kind = "gemps work" if FULL else "client library"
    figures(
        f"server killed and restarted under {number} workers ({kind})",
        f"{kills} kills, all training again each time; seconds after a kill: {told(since_kill)}; after the "
        f"server was ready: {told(since_ready)}",
    )


def told(seconds: list[float]) -> str:
    return ", ".join(f"{one:.1f}" for one in seconds)
