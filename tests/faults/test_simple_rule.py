"""Workers with one rule for all failures, while calls are torn and servers killed: each applied delta counts once.

The rule is that of worker.proto; simple_worker.py has it, and what is compared. All operations follow from the seed,
GEMPS_FUZZ_SEED (4 where it is not set); it is in the figures.
"""

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.faults.processes import count
from tests.faults.simple_worker import KILLED, SimpleWorker
from tests.figures import Figures
from tests.shards.processes import SupervisedShards
from tests.wire.model import Model, Tensor

SEED = int(os.environ.get("GEMPS_FUZZ_SEED", "4"))
OPERATIONS = count(120, 5_000)
# One in so many operations kills a server.
KILL_EVERY = count(40, 200)
WORKERS = 2
A_ROUND = 30  # operations of each worker between two looks at everything


# Commits travel in chunks; pieces of two shards are small enough to travel whole as well.
MODEL = Model((Tensor("weight", (3_125, 8)), Tensor("steps", (), "buffer", "int64")))
CASES = [
    pytest.param(1, False, id="gRPC"),
    pytest.param(1, True, id="lane"),
    pytest.param(2, False, id="two-shards"),
]


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("shards", "lane"), CASES)
async def test_each_delta_counts_as_the_server_says(tmp_path: Path, shards: int, lane: bool, figures: Figures) -> None:
    with SupervisedShards(
        *(shards, tmp_path, "--durability", "commit", "--checkpoint-interval", "5"), "--set=limits.chunk_bytes=16384"
    ) as servers:
        workers = [
            SimpleWorker(
                servers.address,
                MODEL,
                shards=shards,
                lane=lane,
                number=number,
                count=WORKERS,
                draw=random.Random(f"{SEED}-{shards}-{lane}-{number}"),
                kill=lambda index: servers.kill(index, after=0),
                kill_chance=1 / KILL_EVERY,
            )
            for number in range(WORKERS)
        ]
        try:
            for worker in workers:
                await worker.recover()
            while sum(worker.tally["operations"] for worker in workers) < OPERATIONS:
                await asyncio.gather(*map(one_round, workers))
                await compare(workers)
        finally:
            for worker in workers:
                await worker.close()
    tally = sum((worker.tally for worker in workers), Counter[str]())
    refusals = sum((worker.refusals for worker in workers), Counter[str]())
    applied = sum(worker.applied for worker in workers)
    assert tally["lost"] <= tally["failures"]
    assert applied + tally["lost"] == tally["operations"]
    for index in range(shards):
        assert "Traceback" not in servers.log(index)
    figures(
        f"one rule for failures, seed {SEED}, {shards} shard(s), {'lane' if lane else 'gRPC'}",
        f"{tally['operations']} operations, {tally['failures']} failures, {sum(tally[one] for one in KILLED)} kills, "
        f"{applied} commits applied, {tally['lost']} deltas lost, {refusals['SEQUENCE_REUSED']} SEQUENCE_REUSED, "
        f"parameters bit-equal; calls ended with {dict(sorted(refusals.items()))}",
    )


async def one_round(worker: SimpleWorker) -> None:
    for _ in range(A_ROUND):
        await worker.operate()


async def compare(workers: list[SimpleWorker]) -> None:
    """Check that the server has exactly what it told each worker that it applied. No call is under way."""
    for worker in workers:
        clock, theta, rest = await worker.everything()
    expected = np.empty_like(theta)
    for number, worker in enumerate(workers):
        expected[number::WORKERS] = worker.expected
    assert theta.tobytes() == expected.tobytes()
    assert clock == 1 + sum(worker.applied for worker in workers)
    assert rest in [worker.rest for worker in workers]
