"""The server's memory does not grow with the number of commits."""

from pathlib import Path

import numpy as np
import pytest
from gemps.v1 import commit_pb2

from tests.wire.calls import Stream
from tests.wire.model import Model, Tensor
from tests.wire.processes import ServerProcess, server_process
from tests.wire.refusals import refused
from tests.wire.transfer import MIB
from tests.wire.worker import RawWorker

TINY = Model((Tensor("weight", (500,)), Tensor("count", (), "buffer", "int64")))
MEGABYTE = Model((Tensor("weight", (256 * 1024,)),))
WORKERS = 4


class SteadyWorker:
    """Commits one delta again and again, with as little work of its own as can be."""

    def __init__(self, worker: RawWorker) -> None:
        commit = worker.prepare(worker.delta(1))
        self._message = commit.whole()
        self._stream = Stream(worker.stub.Commit())

    async def commit(self, times: int) -> None:
        header = self._message.header
        for _ in range(times):
            await self._stream.send(self._message)
            answer: commit_pb2.CommitResponse = await self._stream.receive()
            assert answer.verdict.sequence == header.sequence
            assert answer.HasField("footer"), "a small reply comes in one message"
            header.sequence += 1
            header.base_version.CopyFrom(answer.verdict.version)


async def grown_bytes(server: ServerProcess, before: int, after: int) -> int:
    """How much anonymous memory the commits between the first `before` and the first `after` have cost."""
    workers = [SteadyWorker(worker) for worker in await server.training(WORKERS, TINY)]
    measured = []
    for commits in (before, after - before):
        # One after the other, so that both measurements see the same state: nothing under way.
        for worker in workers:
            await worker.commit(commits // WORKERS)
        measured.append(server.anonymous_bytes())
    status = await server.status()
    assert status.commits == after
    return measured[1] - measured[0]


@pytest.mark.long
async def test_memory_after_5_000_commits_is_that_after_1_000(tmp_path: Path) -> None:
    async with server_process(tmp_path) as server:
        grown = await grown_bytes(server, 1_000, 5_000)
    assert grown < 2.5 * MIB, f"{grown / MIB:.1f} MiB more"


async def test_refused_commits_leave_no_memory_behind(tmp_path: Path) -> None:
    """Each one came with a megabyte that nobody needs any more."""
    async with server_process(tmp_path) as server:
        (worker,) = await server.training(1, MEGABYTE)
        wrong = worker.delta(1)
        wrong.parameters[-1] = np.nan
        measured = []
        for count in (20, 60):
            for _ in range(count):
                await refused(worker.commit_on_new_stream(worker.prepare(wrong)), "BAD_VALUE")
            measured.append(server.anonymous_bytes())
        await server.next_commit_works(worker)
    grown = measured[1] - measured[0]
    assert grown < 10 * MIB, f"{grown / MIB:.1f} MiB more"


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_memory_after_200_000_commits_is_that_after_20_000(tmp_path: Path) -> None:
    async with server_process(tmp_path) as server:
        grown = await grown_bytes(server, 20_000, 200_000)
    print(f"{grown / MIB:.1f} MiB more after 180 000 commits")
    assert grown < 5 * MIB, f"{grown / MIB:.1f} MiB more"
