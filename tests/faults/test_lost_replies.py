"""Replies that never arrive, and workers that ask again, up to ten times, also of a server that has come back."""

import asyncio
import itertools
import os
import random
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.core.slow import word_sum
from tests.faults.history import Deltas, History
from tests.faults.library_worker import LibraryWorker
from tests.faults.load import LoggedWorker
from tests.faults.processes import EACH_OVER_TRANSPORTS, MODELS_AND_TRANSPORTS, count, kill, over, start
from tests.figures import Figures
from tests.waiting import eventually_async, happens_async
from tests.wire.model import SMALL, Model
from tests.wire.processes import ServerProcess
from tests.wire.transfer import Commit
from tests.wire.worker import CommitStream, RawWorker

WORKERS = 3
KILL_SECONDS = (0.1, 0.5)  # after a restart
MOST_RETRIES = 10
# What a connection brings beside the reply: settings, headers, the answer to a heartbeat.
OVERHEAD_BYTES = 400
CHUNK_BYTES = 40_000
# Through shared memory a reply is a message without parameters.
SHARED_REPLY_BYTES = 300


def new_history(model: Model) -> History:
    return History(model, model.random_values(0))


async def judge(server: ServerProcess, history: History) -> None:
    """Every commit counts once, and the parameters are those that these commits make, bit for bit."""
    assert bytes((await server.read(history.model)).payload) == history.rebuild(Deltas(history.model))
    assert (await server.status()).commits == len(history.commits)


@asynccontextmanager
async def library_workers(
    port: int, history: History, on_cut: Callable[[], None] = lambda: None, *, shares: bool = False
) -> AsyncIterator[list[LibraryWorker]]:
    """Workers of the client library that have begun."""
    seeds = itertools.count(1)
    names = [f"worker-{number}" for number in range(WORKERS)]
    workers = [LibraryWorker(name, port, history, seeds, on_cut, shares=shares) for name in names]
    try:
        for worker in workers:
            await asyncio.to_thread(worker.begin)
        yield workers
    finally:
        for worker in workers:
            await asyncio.to_thread(worker.close)


def port_of(server: ServerProcess) -> int:
    return int(server.address.rpartition(":")[2])


# -- replies that are cut off ------------------------------------------------------------------------------------------


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("model", "shares"), MODELS_AND_TRANSPORTS)
async def test_reply_that_is_cut_off_up_to_ten_times_counts_once(
    tmp_path: Path, model: Model, shares: bool, figures: Figures
) -> None:
    """A commit's first cut goes through the reply in steps; how often it is cut again, and where, is chance."""
    history = new_history(model)
    commits = count(8, 400) if model is SMALL else count(6, 150)
    reply = (SHARED_REPLY_BYTES if shares else model.byte_count()) + OVERHEAD_BYTES

    def work(number: int, worker: LibraryWorker) -> int:
        draw, most = random.Random(number), 0
        for index in range(commits):
            before = worker.proxy.cuts
            first = (index * WORKERS + number) * reply // (commits * WORKERS)
            further = [draw.randrange(reply // 6) for _ in range(draw.randrange(MOST_RETRIES))]
            worker.proxy.cut_after("to_client", first, *further)
            worker.commit()
            worker.proxy.disarm()
            most = max(most, worker.proxy.cuts - before)
        return most

    server = await start(tmp_path / "data", chunk_bytes=CHUNK_BYTES, shared_memory_socket=str(tmp_path / "memory"))
    try:
        async with library_workers(port_of(server), history, shares=shares) as workers:
            most = max(await asyncio.gather(*(asyncio.to_thread(work, *pair) for pair in enumerate(workers))))
            cuts = sum(worker.proxy.cuts for worker in workers)
            duplicates = sum(worker.duplicates for worker in workers)
        await judge(server, history)
        assert len(history.commits) == commits * WORKERS
        assert duplicates > 0
        assert 5 <= most <= MOST_RETRIES
        assert not any(worker.dropped for worker in workers)
        assert all(worker.shared == (commits if shares else 0) for worker in workers)
    finally:
        await kill(server)
    figures(
        f"reply cut off, client library, {model.parameter_count} parameters{over(shares)}",
        f"{commits * WORKERS} commits, {cuts} connections cut within the reply, up to {most} times for one commit, "
        f"{duplicates} told as duplicates: 0 applied twice, 0 lost, parameters bit-equal",
    )


# -- attempts that are given up ----------------------------------------------------------------------------------------


class Stubborn(LoggedWorker):
    """Makes many attempts of each commit, and reads only the last one to its end."""

    def __init__(
        self, name: str, history: History, seeds: "itertools.count[int]", draw: random.Random, *, shares: bool
    ) -> None:
        super().__init__(name, history.model, history, seeds, shares=shares)
        self.draw = draw
        self.attempts = 0

    async def commit_stubbornly(self, retries: int) -> None:
        worker = self.worker
        assert worker is not None
        seed = next(self.seeds)
        if self.sharing is not None:
            commit = self.sharing.prepare(worker.delta(seed))
            commit.header.payload_crc32c = word_sum(commit.payload)
        else:
            commit = worker.prepare(worker.delta(seed), chunk_bytes=CHUNK_BYTES).repeated()
        base_clock = worker.version.clock
        for _ in range(retries):
            await self._give_up(worker, commit)
        self.attempts += retries
        await self.settle(commit, seed, base_clock)

    async def _give_up(self, worker: RawWorker, commit: Commit) -> None:
        """One attempt, by the header alone or with all bytes, on this connection or one that is lost."""
        twin = worker.twin(worker.session_id) if self.draw.random() < 0.3 else None
        stream = (twin or worker).commit_stream()
        try:
            if commit.chunks and commit.travels_whole and self.draw.random() < 0.5:
                await stream.send(commit.whole())
            else:
                await stream.send(commit.opening())
            await self._read_some(stream, commit)
        finally:
            stream.cancel()
            if twin is not None:
                await twin.close()

    async def _read_some(self, stream: CommitStream, commit: Commit) -> None:
        for _ in range(self.draw.randrange(9)):
            message = await stream.receive()
            if message is None or message.HasField("footer"):
                return
            if message.HasField("proceed"):
                await stream.send_rest(commit)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("model", "shares", "each_transport_and_tls"), EACH_OVER_TRANSPORTS, indirect=["each_transport_and_tls"]
)
async def test_attempts_given_up_anywhere_count_once(
    tmp_path: Path, each_transport_and_tls: str, model: Model, shares: bool, figures: Figures
) -> None:
    history, seeds, draw = new_history(model), itertools.count(1), random.Random(5)
    commits = count(8, 300)
    server = await start(
        tmp_path / "data",
        chunk_bytes=CHUNK_BYTES,
        durability="commit",
        shared_memory_socket=str(tmp_path / "memory"),
    )
    workers = [Stubborn(f"worker-{number}", history, seeds, draw, shares=shares) for number in range(WORKERS)]

    async def train(worker: Stubborn) -> None:
        for _ in range(commits):
            await worker.commit_stubbornly(draw.randint(0, MOST_RETRIES))

    try:
        for worker in workers:
            await worker.connect(server.address)
        await asyncio.gather(*map(train, workers))
        await judge(server, history)
        duplicates = sum(worker.duplicates for worker in (await server.status()).workers)
    finally:
        for worker in workers:
            await worker.close()
        await kill(server)
    attempts = sum(worker.attempts for worker in workers)
    assert duplicates > commits
    figures(
        f"attempts given up anywhere, {model.parameter_count} parameters{over(shares, each_transport_and_tls)}",
        f"{commits * WORKERS} commits, {attempts} attempts given up (up to {MOST_RETRIES} for one), {duplicates} "
        "answered as duplicates: 0 applied twice, 0 lost, parameters bit-equal",
    )


# -- a server that is killed as the reply is cut off -------------------------------------------------------------------


def lasting_port() -> int:
    """A free port that no connection of this machine gets by chance while the server is away."""
    for port in random.SystemRandom().sample(range(20_000, 30_000), 100):
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("no free port")


async def hears_of_a_duplicate(workers: list[LibraryWorker]) -> bool:
    """Whether any of them does, or has already, in the time that they take to find a server that has come back."""
    return await happens_async(lambda: any(worker.duplicates for worker in workers), patience=4.0)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("model", "shares"),
    MODELS_AND_TRANSPORTS[:3],
)
async def test_retry_after_a_restart_counts_once(tmp_path: Path, model: Model, shares: bool, figures: Figures) -> None:
    """The server dies in the moment in which the reply is cut off: the first retry finds it gone, a later one back."""
    history, draw = new_history(model), random.Random(7)
    least, kills = count(2, 40), 0
    settings = {
        "bind": f"127.0.0.1:{lasting_port()}",
        "durability": "commit",
        "chunk_bytes": CHUNK_BYTES,
        "shared_memory_socket": str(tmp_path / "memory"),
    }
    reply = (SHARED_REPLY_BYTES if shares else model.byte_count()) + OVERHEAD_BYTES
    server = await start(tmp_path / "data", **settings)
    done = threading.Event()

    def die() -> None:
        os.kill(server.process.pid, signal.SIGKILL)

    try:
        async with library_workers(port_of(server), history, die, shares=shares) as workers:
            working = [asyncio.create_task(asyncio.to_thread(worker.commit_until, done)) for worker in workers]
            try:
                # A cut may also fall into a pull, after which no commit is told as a duplicate: then there are more.
                while kills < least or (kills < 10 * least and not await hears_of_a_duplicate(workers)):
                    await asyncio.sleep(draw.uniform(*KILL_SECONDS))
                    proxy = workers[kills % WORKERS].proxy
                    proxy.cut_after("to_client", draw.randrange(reply))
                    await asyncio.wait_for(server.process.wait(), 60)
                    await server.close()
                    server = await start(tmp_path / "data", **settings)
                    kills += 1
                before = len(history.commits)
                names = {worker.name for worker in workers}
                await eventually_async(lambda: names <= {commit.worker for commit in history.commits[before:]})
            finally:
                done.set()
                await asyncio.wait_for(asyncio.gather(*working), 60)
            duplicates = sum(worker.duplicates for worker in workers)
            dropped = sum(worker.dropped for worker in workers)
            # After each restart, too: all workers shared memory again.
            assert all(worker.shares_now == shares for worker in workers)
        await judge(server, history)
    finally:
        if server.process.returncode is None:
            await kill(server)
    assert duplicates > 0
    figures(
        f"retry after a restart, client library, {model.parameter_count} parameters{over(shares)}",
        f"{kills} servers killed as a reply was cut off, {len(history.commits)} commits, {duplicates} told as "
        f"duplicates, {dropped} deltas dropped that were not applied: 0 applied twice, 0 acknowledged lost, parameters "
        "bit-equal",
    )
