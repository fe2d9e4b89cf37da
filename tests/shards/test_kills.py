"""Shards and workers are killed under load: no commit is on some shards only, none that was acknowledged is lost.

In the full form (GEMPS_TEST_FULL=1) there are 100 kills of shards at each level, and 100 of workers.
"""

import multiprocessing
import random
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest
from gem_server.durability import recovery
from gem_worker.client import ClientSettings, Observer

from tests.forms import FULL
from tests.shards.processes import (
    DEADLINE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    WORKERS,
    CountingWorker,
    SupervisedShards,
    count_commits,
    counts,
    kill_at_random,
)
from tests.waiting import eventually

KILLS = 100 if FULL else 1
SHARDS = 3


@pytest.mark.long
@pytest.mark.parametrize(
    ("level", "memory"),
    [("commit", ""), ("interval", ""), ("commit", "memory")],
)
@pytest.mark.timeout(120 + 40 * KILLS)
def test_killed_shards(level: str, memory: str, tmp_path: Path) -> None:
    settings = ("--durability", level, "--checkpoint-interval", "1")
    if memory:
        settings += ("--shared-memory-socket", f"{tmp_path}/{{shard}}")
    with SupervisedShards(SHARDS, tmp_path, *settings) as shards:
        workers = [CountingWorker(shards.address, number) for number in range(WORKERS)]
        for worker in workers:
            worker.start()
        kill_at_random(shards, workers, KILLS, seed=len(level))
        before = [worker.applied for worker in workers]
        eventually(
            lambda: all(worker.applied > seen + 2 for worker, seen in zip(workers, before, strict=True)),
            patience=DEADLINE_SECONDS,
        )
        assert ("shares memory" in shards.log(1)) == bool(memory)
        assert min(shards.starts) >= 1 + KILLS, "a shard went on without one that was killed"
        with Observer(shards.address, settings=ClientSettings(connect_timeout=60)) as observer:
            observer.control("finish", "the test has seen enough")
        for worker in workers:
            worker.join()
            assert worker.error is None
    totals = commits_on_all(shards)
    if level == "commit":
        assert totals == [worker.applied for worker in workers]


@pytest.mark.long
@pytest.mark.timeout(120 + 40 * KILLS)
def test_killed_workers(tmp_path: Path) -> None:
    choose = random.Random(1)
    context = multiprocessing.get_context("spawn")
    with SupervisedShards(SHARDS, tmp_path) as shards, Observer(shards.address, wait=DEADLINE_SECONDS) as observer:

        def start(number: int) -> BaseProcess:
            worker = context.Process(target=count_commits, args=(shards.address, number))
            worker.start()
            return worker

        def commits() -> dict[str, int]:
            return {one["name"]: int(one["commits"]) for one in observer.get_status()["workers"]}

        workers = [start(number) for number in range(WORKERS)]
        for _ in range(KILLS + 1):
            before = commits()
            eventually(
                lambda before=before: (
                    len(commits()) == WORKERS  # type: ignore[misc]
                    and all(now > before.get(name, 0) + 2 for name, now in commits().items())
                ),
                lambda: [worker.exitcode for worker in workers],
                patience=DEADLINE_SECONDS,
            )
            number = choose.randrange(WORKERS)
            shards.pause(choose.random() * LONGEST_PAUSE_SECONDS)
            workers[number].kill()
            workers[number].join()
            workers[number] = start(number)
        observer.control("finish", "the test has seen enough")
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0
        expected = commits()
    assert shards.starts == [1] * SHARDS
    assert commits_on_all(shards) == [expected[f"worker-{number}"] for number in range(WORKERS)]


def commits_on_all(shards: SupervisedShards) -> list[float]:
    """Of each worker, after the end; fails if shards differ."""
    found = [recovery.recover(shards.data_dir(index)) for index in range(SHARDS)]
    wholes = [one.whole for one in found if one is not None]
    assert len({whole.clock for whole in wholes}) == 1
    applied = counts(np.concatenate([whole.parameters for whole in wholes]))
    assert all(len(one) == 1 for one in applied), "a commit is on some shards only"
    totals = [one.pop() for one in applied]
    assert sum(totals) == wholes[0].clock - 1
    return totals
