"""A run on several servers equals one on a single server, bit for bit."""

import functools
import threading
from typing import NamedTuple

import numpy as np
import pytest

from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec
from gem_core.registry import BUILT_IN
from tests.shards.group import MODEL, Float32, Worker, serving

WORKERS, ROUNDS = 3, 6
# Each third has more than one block, and cuts are within blocks.
LARGE = Layout(
    [
        TensorSpec("weight", (51_000,), ElementType.FLOAT32, TensorKind.PARAMETER),
        TensorSpec("steps", (), ElementType.INT64, TensorKind.BUFFER),
    ]
)
CASES = [(rule, shards) for rule in BUILT_IN for shards in (2, 3, 5)]
QUICK = CASES[::16]  # with 2, 3 and 5 shards
CASES = [pytest.param(*one, marks=() if one in QUICK else pytest.mark.long) for one in CASES]


class Result(NamedTuple):
    """`order`: clock and staleness of each commit; `pulled`: by the first worker, in the end."""

    theta: Float32
    pulled: Float32
    order: list[tuple[int, int]]


def run(shards: int, rule: str, layout: Layout = MODEL) -> Result:
    """Train workers in turn, of which one leaves and returns with another session."""
    with serving(shards, rule=rule) as group:
        workers = [Worker(group.address, number, layout) for number in range(WORKERS)]
        for worker in workers:
            worker.begin()
        for worker in workers:
            worker.pull()
        seen = []
        for number in range(ROUNDS):
            for index, worker in enumerate(workers):
                if number == 3 and index == 1:
                    worker.end()
                    worker = workers[index] = Worker(group.address, index, layout)
                    worker.begin()
                    worker.pull()
                outcome = worker.commit()
                assert outcome.applied
                seen.append((outcome.version.clock, outcome.verdict.staleness))
        assert set(group.clocks()) == {1 + WORKERS * ROUNDS}
        workers[0].pull()
        result = Result(group.parameters(), workers[0].parameters, seen)
        for worker in workers:
            worker.end()
        return result


@functools.cache
def alone(rule: str) -> Result:
    return run(1, rule)


@pytest.mark.parametrize(("rule", "shards"), CASES)
def test_shards_move_the_model_as_one_server(rule: str, shards: int) -> None:
    expected, found = alone(rule), run(shards, rule)
    assert found.order == expected.order
    assert np.array_equal(found.theta, expected.theta)
    assert np.array_equal(found.pulled, expected.pulled)


def run_at_once(shards: int) -> Float32:
    """Run concurrent workers whose commits are served in strict turns."""
    with serving(shards, rule="gem", order="round-robin", min_workers=WORKERS, steps=ROUNDS) as group:
        workers = [Worker(group.address, number) for number in range(WORKERS)]
        for worker in workers:
            worker.begin()

        def train(worker: Worker) -> None:
            worker.pull()
            for _ in range(ROUNDS):
                assert worker.commit().applied

        threads = [threading.Thread(target=train, args=(worker,)) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(group.clocks()) == {1 + WORKERS * ROUNDS}
        for worker in workers:
            worker.end()
        return group.parameters()


def test_workers_at_once_in_round_robin() -> None:
    assert np.array_equal(run_at_once(3), run_at_once(1))
