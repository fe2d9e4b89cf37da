"""Many clients in one process, over one connection: each commits some times, and obeys when it is told to come back.

    python crowd.py ADDRESS COMMITS UPLOAD_SECONDS NAME...

Prints what they have seen, as JSON.
"""

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from gemps.v1 import commit_pb2

from tests.wire.calls import Stream, open_channel
from tests.wire.model import Model, Tensor
from tests.wire.refusals import read_refusal
from tests.wire.worker import RawWorker

# A payload of 48 KB, in one chunk.
MODEL = Model((Tensor("weight", (12_000,)),))
IN_THE_ROOM = 120.0  # seconds: a guard; how long a client waits for its turn is judged by the commits of others
RETRY_JITTER = (1.0, 1.25)  # factors of the time that a refusal names


@dataclass
class Seen:
    """What clients have seen.

    `refusals`: by reason. `most_of_others`: how many commits of others came, at most, between two of a client's own.
    """

    refusals: Counter[str] = field(default_factory=Counter)
    commits: int = 0
    most_of_others: int = 0
    most_refusals_in_a_row: int = 0

    def add(self, other: "Seen") -> None:
        self.refusals.update(other.refusals)
        self.commits += other.commits
        self.most_of_others = max(self.most_of_others, other.most_of_others)
        self.most_refusals_in_a_row = max(self.most_refusals_in_a_row, other.most_refusals_in_a_row)


class Client:
    """Asks again as soon as it was served; when refused, after the time that it was told, as a worker's library does.

    It keeps its staging buffer for `upload_seconds`: so it is buffers that are short, not this machine's cores.
    """

    def __init__(self, worker: RawWorker, upload_seconds: float, seen: Seen) -> None:
        self._worker = worker
        self._upload_seconds = upload_seconds
        self._seen = seen
        self._draw = random.Random(worker.name)
        self._stream: Stream | None = None

    async def train(self, commits: int) -> None:
        """Join, commit so many times, leave."""
        await self._obeying(self._worker.join)
        await self._obeying(self._worker.pull)
        commit = self._worker.prepare(self._worker.delta(1))
        opening, rest = commit.opening(), commit_pb2.CommitRequest(chunk=commit.chunks[0], footer=commit.footer)
        for _ in range(commits):
            verdict = (await self._obeying(lambda: self._commit(opening, rest))).verdict
            assert verdict.sequence == opening.header.sequence
            opening.header.sequence += 1
            opening.header.base_version.CopyFrom(verdict.version)
            self._seen.commits += 1
            self._seen.most_of_others = max(self._seen.most_of_others, verdict.staleness)
        await self._worker.leave()

    async def _commit(self, opening: Any, rest: Any) -> Any:
        if self._stream is None:
            self._stream = Stream(self._worker.stub.Commit())
        try:
            await self._stream.send(opening)
            assert (await self._stream.receive(IN_THE_ROOM)).HasField("proceed")
            await asyncio.sleep(self._upload_seconds)
            await self._stream.send(rest)
            answer = await self._stream.receive(IN_THE_ROOM)
            assert answer.HasField("footer"), "a small reply comes in one message"
        except BaseException:
            self._stream = None
            raise
        return answer

    async def _obeying(self, call: Callable[[], Awaitable[Any]]) -> Any:
        refusals = 0
        while True:
            try:
                return await call()
            except grpc.aio.AioRpcError as error:
                refusal = read_refusal(error)
            assert refusal.retry_after is not None, refusal
            refusals += 1
            self._seen.refusals[refusal.reason] += 1
            self._seen.most_refusals_in_a_row = max(self._seen.most_refusals_in_a_row, refusals)
            await asyncio.sleep(refusal.retry_after * self._draw.uniform(*RETRY_JITTER))


async def main(address: str, commits: int, upload_seconds: float, names: list[str]) -> Seen:
    seen = Seen()
    channel = open_channel(address)
    try:
        workers = [RawWorker(address, MODEL, name, channel=channel) for name in names]
        await asyncio.gather(*(Client(worker, upload_seconds, seen).train(commits) for worker in workers))
    finally:
        await channel.close()
    return seen


if __name__ == "__main__":
    address, commits, upload_seconds, *names = sys.argv[1:]
    print(json.dumps(vars(asyncio.run(main(address, int(commits), float(upload_seconds), names)))))
