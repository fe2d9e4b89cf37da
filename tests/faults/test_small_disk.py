"""A file system that is really full: a small one, mounted for the test, where that is allowed."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.processes import kill, start
from tests.figures import Figures
from tests.small_disk import small_disk_at
from tests.waiting import eventually_async
from tests.wire.model import LARGE
from tests.wire.refusals import PATIENCE, Refusal, answered_or_refused
from tests.wire.worker import RawWorker

MIB = 1024 * 1024
REFUSED_SECONDS = 0.2  # from a refusal to the next attempt


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk_at(tmp_path / "disk", "16m") as place:
        yield place


async def try_commit(worker: RawWorker, seed: int) -> bool:
    """Whether it was applied; else it was refused for want of room, with a time to retry."""
    outcome = await answered_or_refused(worker.commit_on_new_stream(worker.prepare(worker.delta(seed))), "STORAGE_FULL")
    if isinstance(outcome, Refusal):
        assert outcome.retry_after is not None
    return not isinstance(outcome, Refusal)


async def commit_in_time(worker: RawWorker, seed: int) -> int:
    """Commits as a worker does that is told to retry; how often it was."""
    applied: list[bool] = []

    async def again() -> bool:
        applied.append(await try_commit(worker, seed))
        return applied[-1]

    await eventually_async(again, interval=0.1)
    return applied.count(False)


def fill(path: Path) -> None:
    with path.open("ab") as stream:
        for size in (MIB, 4096, 1):
            try:
                while True:
                    os.write(stream.fileno(), bytes(size))
            except OSError:
                continue


@pytest.mark.long
async def test_log_that_takes_all_the_room_is_cut_and_training_goes_on(small_disk: Path, figures: Figures) -> None:
    """There is no checkpoint at an interval: it is the want of room that asks for one."""
    server = await start(small_disk / "data", durability="commit", checkpoint_interval=0)
    try:
        (worker,) = await server.training(1, LARGE)
        refusals = [await commit_in_time(worker, seed) for seed in range(150)]
        assert (await server.status()).commits == 150
        expected = bytes((await server.read(LARGE)).payload)
    finally:
        await kill(server)
    server = await start(small_disk / "data", durability="commit")
    try:
        assert bytes((await server.read(LARGE)).payload) == expected
    finally:
        await kill(server)
    figures("ENOSPC by its own log", f"150 commits of 213 kB through 16 MiB, {sum(refusals)} told to retry, 0 lost")


async def test_disk_filled_by_others_refuses_commits_serves_pulls_and_recovers(
    small_disk: Path, figures: Figures
) -> None:
    server = await start(small_disk / "data", durability="commit", checkpoint_interval=0)
    filler = small_disk / "filler"
    try:
        (worker,) = await server.training(1, LARGE)
        refused_in_a_row, applied = 0, 0
        async with asyncio.timeout(3 * PATIENCE):
            while refused_in_a_row < 5:
                fill(filler)
                done = await try_commit(worker, applied)
                applied += done
                refused_in_a_row = 0 if done else refused_in_a_row + 1
                await asyncio.sleep(0 if done else REFUSED_SECONDS)
        await worker.pull()
        assert (await server.status()).commits == applied
        filler.unlink()
        await commit_in_time(worker, applied)
        expected = bytes((await server.read(LARGE)).payload)
        fill(filler)
    finally:
        await kill(server)
    filler.unlink()
    server = await start(small_disk / "data", durability="commit")
    try:
        assert (await server.status()).commits == applied + 1
        assert bytes((await server.read(LARGE)).payload) == expected
    finally:
        await kill(server)
    figures("ENOSPC by others", f"{applied} commits before, refused while full, pulls served, went on by itself")
