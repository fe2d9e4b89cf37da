"""Workers that read slowly or not at all, send slowly, or stop in the midst of a commit: the others hardly notice."""

import asyncio
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from tests.faults import steady_workers
from tests.faults.processes import count
from tests.faults.steady_workers import CHUNK_BYTES, MODEL
from tests.figures import Figures
from tests.forms import FULL
from tests.waiting import eventually_async
from tests.wire.processes import ServerProcess, server_process
from tests.wire.refusals import read_refusal
from tests.wire.transfer import Commit
from tests.wire.worker import CommitStream, RawWorker

WORKERS, MISBEHAVING = 32, 8
STAGING_BUFFERS = 4
SLOW_PLACES = 1  # one more buffer, for those who are slow
KEPT = 0.8  # of the others' commits a second
# For each message of a slow reader, and between the chunks of a slow sender.
READING_SECONDS, CHUNK_SECONDS = 2.0, 1.0

Habit = Callable[[CommitStream], Awaitable[None]]


async def reads_slowly(stream: CommitStream) -> None:
    """Half a minute for a reply."""
    await stream.send_commit(next_commit(stream))
    while not (await stream.receive()).HasField("footer"):
        await asyncio.sleep(READING_SECONDS)


async def reads_nothing(stream: CommitStream) -> None:
    await stream.send_commit(next_commit(stream))
    await asyncio.Event().wait()


async def sends_a_chunk_a_second(stream: CommitStream) -> None:
    commit = next_commit(stream)
    await stream.send_opening(commit)
    for message in commit.chunk_messages():
        if stream.call.done():
            break
        await stream.send(message)
        await asyncio.sleep(CHUNK_SECONDS)
    await stream.send(commit.closing())
    while not (await stream.receive()).HasField("footer"):
        pass


async def stops_in_the_midst(stream: CommitStream) -> None:
    commit = next_commit(stream)
    await stream.send_opening(commit)
    for message in commit.chunk_messages()[:8]:
        await stream.send(message)
    await stream.call.read()


HOLD_THEIR_BUFFER = (sends_a_chunk_a_second, stops_in_the_midst)
CASES: dict[str, list[Habit]] = {
    "8 of 32 read slowly, read nothing, or send a chunk a second": [
        *[reads_slowly] * 2,
        *[reads_nothing] * 2,
        *[sends_a_chunk_a_second] * 4,
    ],
    "as many as there are buffers send a chunk a second, or stop": [
        *[sends_a_chunk_a_second] * 2,
        *[stops_in_the_midst] * 2,
    ],
}
if FULL:
    CASES |= {
        "8 of 32 read slowly": [reads_slowly] * MISBEHAVING,
        "8 of 32 read nothing": [reads_nothing] * MISBEHAVING,
        "8 of 32 send a chunk a second": [sends_a_chunk_a_second] * MISBEHAVING,
        "as many as there are buffers send a chunk a second": [sends_a_chunk_a_second] * STAGING_BUFFERS,
        "as many as there are buffers stop in the midst": [stops_in_the_midst] * STAGING_BUFFERS,
    }


def next_commit(stream: CommitStream) -> Commit:
    return stream.worker.prepare(stream.worker.delta(1), chunk_bytes=CHUNK_BYTES)


async def misbehave(worker: RawWorker, habit: Habit, refused: Counter[str]) -> None:
    """Commit by habit again and again; when refused, come back after the time that the server has told."""
    while True:
        await worker.join()
        await worker.pull()
        stream = worker.commit_stream()
        try:
            await habit(stream)
        except grpc.aio.AioRpcError as error:
            refusal = read_refusal(error)
            assert refusal.retry_after is not None, refusal
            assert refusal.reason == "STALLED", refusal
            refused[worker.name] += 1
            await asyncio.sleep(refusal.retry_after)
        finally:
            stream.cancel()


@asynccontextmanager
async def steady(server: ServerProcess, number: int) -> AsyncIterator[list[str]]:
    """The names of workers that commit as fast as they can, in two processes."""
    names = [f"steady-{index}" for index in range(number)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, steady_workers.__file__, server.address, *names[index::2], env=environment
        )
        for index in range(2)
    ]
    try:
        yield names
    finally:
        for process in processes:
            assert process.returncode is None, "a process of steady workers has failed; it has said why"
            process.kill()
            await process.wait()


class Others:
    """What the steady workers get done."""

    def __init__(self, server: ServerProcess, names: list[str]) -> None:
        self._server = server
        self._names = set(names)

    async def commits(self) -> int:
        return sum(worker.commits for worker in (await self._server.status()).workers if worker.name in self._names)

    async def all_train(self) -> None:
        async def look() -> bool:
            return sum(worker.commits > 0 for worker in (await self._server.status()).workers) >= len(self._names)

        await eventually_async(look)

    async def rate(self, seconds: float) -> float:
        """Their commits a second for so long."""
        before, start = await self.commits(), time.monotonic()
        await asyncio.sleep(seconds)
        return (await self.commits() - before) / (time.monotonic() - start)


async def alternate(server: ServerProcess, others: Others, case: str, habits: list[Habit]) -> tuple[str, float]:
    """Their rate without and with the misbehaving ones, in turn; what was found, and how much of it they kept.

    Where that is too little it goes on for up to three times as many rounds: a busy machine takes more than its part of
    some.
    """
    rounds, seconds = count(4, 10), count(1, 2)
    refused = Counter[str]()
    holders = sum(habit in HOLD_THEIR_BUFFER for habit in habits)
    workers = [
        server.adopt(RawWorker(server.address, MODEL, f"{case} {index}", reads_ahead=False))
        for index in range(len(habits))
    ]
    rates, kept, reclaimed = [await others.rate(seconds)], list[float](), 0.0
    while len(kept) < rounds or (statistics.median(kept) < KEPT and len(kept) < 3 * rounds):
        tasks = {
            asyncio.create_task(misbehave(worker, habit, refused))
            for worker, habit in zip(workers, habits, strict=True)
        }
        if not kept:  # from then on the server knows them
            reclaimed = await seconds_until(lambda: len(refused) >= holders - SLOW_PLACES)
        rates.append(await others.rate(seconds))
        assert not [task.exception() for task in tasks if task.done()]
        while tasks:  # a cancellation may be lost (asyncio.wait_for, Python 3.11)
            for task in tasks:
                task.cancel()
            _, tasks = await asyncio.wait(tasks, timeout=1)
        rates.append(await others.rate(seconds))
        kept.append(2 * rates[-2] / (rates[-3] + rates[-1]))
    for worker in workers:
        await worker.leave()
    found = (
        f"the others' commits/s {statistics.median(kept):.2f} of before (median of {len(kept)}, {min(kept):.2f} to "
        f"{max(kept):.2f}), which was {statistics.median(rates[::2]):.0f}; buffers reclaimed after {reclaimed:.1f} s, "
        f"{refused.total()} uploads ended"
    )
    return found, statistics.median(kept)


async def seconds_until(condition: Callable[[], bool]) -> float:
    start = time.monotonic()
    await eventually_async(condition)
    return time.monotonic() - start


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_slow_workers_lose_their_buffers_and_the_others_go_on(tmp_path: Path, figures: Figures) -> None:
    async with server_process(tmp_path, staging_buffers=STAGING_BUFFERS, chunk_bytes=CHUNK_BYTES) as server:
        first = await server.joined(MODEL)
        await first.initialize()
        await first.leave()
        async with steady(server, WORKERS - MISBEHAVING) as names:
            others = Others(server, names)
            await others.all_train()
            for case, habits in CASES.items():
                found, kept = await alternate(server, others, case, habits)
                figures(case, found)
                assert kept >= KEPT, case
