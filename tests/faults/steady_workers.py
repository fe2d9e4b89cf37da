"""Workers in one process that commit as fast as they can until it is ended: python steady_workers.py ADDRESS NAME..."""

import asyncio
import sys

from tests.wire.calls import Stream
from tests.wire.model import Model, Tensor
from tests.wire.worker import RawWorker

CHUNK_BYTES = 16 * 1024
# 256 KiB, in 16 chunks each way.
MODEL = Model((Tensor("weight", (64 * 1024,)),))


async def train(worker: RawWorker) -> None:
    await worker.join()
    await worker.pull()
    commit = worker.prepare(worker.delta(1), chunk_bytes=CHUNK_BYTES)
    opening, rest = commit.opening(), [*commit.chunk_messages(), commit.closing()]
    stream = Stream(worker.stub.Commit())
    while True:
        await stream.send(opening)
        assert (await stream.receive()).HasField("proceed")
        for message in rest:
            await stream.send(message)
        answer = await stream.receive()
        opening.header.sequence = answer.verdict.sequence + 1
        opening.header.base_version.CopyFrom(answer.verdict.version)
        while not answer.HasField("footer"):
            answer = await stream.receive()


async def main(address: str, names: list[str]) -> None:
    await asyncio.gather(*(train(RawWorker(address, MODEL, name)) for name in names))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
