"""Servers that are stopped, or started twice, as processes."""

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.faults import failing_process
from tests.faults.history import Deltas
from tests.faults.load import crew, everybody_connects
from tests.faults.processes import count, kill, log_of, start
from tests.figures import Figures
from tests.waiting import eventually_async
from tests.wire import serve_process
from tests.wire.model import SMALL
from tests.wire.processes import START_PATIENCE
from tests.wire.worker import all_of

LOAD_SECONDS = (0.1, 0.8)  # until SIGTERM


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("level", [pytest.param("interval", marks=pytest.mark.long), "commit"])
async def test_sigterm_under_load_finishes_the_queue_loses_nothing_and_exits_0(
    tmp_path: Path, level: str, figures: Figures
) -> None:
    history, workers = crew(SMALL)
    draw = random.Random(4)
    stops = count(1, 20)
    for number in range(stops + 1):
        server = await start(tmp_path / "data", durability=level)
        assert (await server.status()).version.clock >= max((commit.clock for commit in history.commits), default=0)
        await everybody_connects(workers, server.address)
        assert bytes((await server.read(SMALL)).payload) == history.rebuild(Deltas(SMALL))
        if number == stops:
            await kill(server)
            break
        training = [asyncio.create_task(worker.train_until_gone()) for worker in workers]
        await asyncio.sleep(draw.uniform(*LOAD_SECONDS))
        server.process.terminate()
        assert await asyncio.wait_for(server.process.wait(), 30) == 0
        await all_of(*training)
        for worker in workers:
            await worker.close()
        await server.close()
    for worker in workers:
        await worker.close()
    figures(f"SIGTERM, {level}", f"{stops} stops, {len(history.commits)} commits, 0 lost, exit 0 each time")


async def run_to_its_end(**settings: Any) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, serve_process.__file__, json.dumps(settings), stderr=asyncio.subprocess.PIPE
    )
    _, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, errors.decode()


@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_second_server_on_the_same_directory_or_port_is_refused(tmp_path: Path, figures: Figures) -> None:
    first = await start(tmp_path / "data", durability="commit")
    attempts = count(1, 20)
    same_directory = {"bind": "127.0.0.1:0", "data_dir": str(tmp_path / "data"), "resume": True}
    same_port = {"bind": first.address, "data_dir": str(tmp_path / "other"), "resume": True}
    try:
        (worker,) = await first.training()
        for _ in range(attempts):
            code, errors = await run_to_its_end(**same_directory)
            assert code == 2
            assert f"in use by another server (pid {first.process.pid})" in errors
            assert errors.count("\n") == 1
            code, errors = await run_to_its_end(**same_port)
            assert code == 2
            assert "another process has that port" in errors
            await first.next_commit_works(worker)
    finally:
        await kill(first)
    servers = 3
    for number in range(attempts):
        assert await one_of(servers, tmp_path / f"race-{number}") == 1
    figures(
        "second server on the same directory or port",
        f"{attempts} refused on each, with exit code 2, and the first trained on; of {servers} that were started at "
        f"once on one directory, one served, each of {attempts} times",
    )


async def one_of(servers: int, directory: Path) -> int:
    """Starts so many at once on one directory; how many serve when the others have ended with exit code 2."""
    ready = [directory.with_name(f"{directory.name}-{number}.json") for number in range(servers)]
    told = {"bind": "127.0.0.1:0", "data_dir": str(directory)}
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            serve_process.__file__,
            json.dumps(told | {"ready_file": str(file)}),
            stderr=asyncio.subprocess.DEVNULL,
        )
        for file in ready
    ]
    try:

        def all_have_decided() -> bool:
            return sum(file.exists() for file in ready) + sum(one.returncode == 2 for one in processes) >= servers

        await eventually_async(all_have_decided, patience=START_PATIENCE)
        return sum(one.returncode is None for one in processes)
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def test_server_whose_disk_fails_exits_1_with_one_line(tmp_path: Path, figures: Figures) -> None:
    server = await start(tmp_path / "data", failing_process, durability="commit")
    try:
        worker = await server.joined()
        await worker.initialize()
        await worker.pull()
        for seed in range(3):
            await worker.commit(worker.delta(seed))
        with pytest.raises(grpc.aio.AioRpcError, match=r"UNAVAILABLE|CANCELLED"):
            await worker.commit(worker.delta(3))
        assert await asyncio.wait_for(server.process.wait(), 30) == 1
        errors = log_of(tmp_path / "data").read_text()
        (line,) = [line for line in errors.splitlines() if "Input/output error" in line]
        assert "the server stops" in line
        assert "Traceback" not in errors
    finally:
        await server.close()
    server = await start(tmp_path / "data", durability="commit")
    try:
        assert (await server.status()).commits in (3, 4)
    finally:
        await kill(server)
    figures("EIO on sync, a process", "exit code 1, one line, 3 of 3 acknowledged commits there after a restart")
