"""A run on several servers equals one on a single server, bit for bit."""

import functools
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest
from gem_worker.client.pull import Puller

from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec
from gem_core.payload import PayloadFormat
from gem_core.registry import BUILT_IN, PRECONDITIONED
from gem_core.rules.blocks import BLOCK
from tests.shards.group import MODEL, Float32, Worker, serving

WORKERS, ROUNDS = 3, 6
# Each third has more than one block, and cuts are within blocks.
LARGE = Layout(
    [
        TensorSpec("weight", (51_000,), ElementType.FLOAT32, TensorKind.PARAMETER),
        TensorSpec("steps", (), ElementType.INT64, TensorKind.BUFFER),
    ]
)
RULES = [*((name, "none") for name in BUILT_IN), *PRECONDITIONED]
CASES = [(*rule, shards) for rule in RULES for shards in (2, 3, 5)]
QUICK = CASES[::16]  # with 2, 3 and 5 shards
CASES = [pytest.param(*one, marks=() if one in QUICK else pytest.mark.long) for one in CASES]


class Result(NamedTuple):
    """`order`: clock and staleness of each commit; `pulled`: by the first worker, in the end."""

    theta: Float32
    pulled: Float32
    order: list[tuple[int, int]]


def run(
    shards: int, rule: str, precondition: str = "none", state_type: str = "float32", layout: Layout = MODEL
) -> Result:
    """Round robin; one worker leaves and comes back under another session."""
    with serving(shards, rule=rule, precondition=precondition, state_type=state_type) as group:
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
def alone(rule: str, precondition: str) -> Result:
    return run(1, rule, precondition)


@pytest.mark.parametrize(("rule", "precondition", "shards"), CASES)
def test_shards_move_the_model_as_one_server(rule: str, precondition: str, shards: int) -> None:
    expected, found = alone(rule, precondition), run(shards, rule, precondition)
    assert found.order == expected.order
    assert np.array_equal(found.theta, expected.theta)
    assert np.array_equal(found.pulled, expected.pulled)


@pytest.mark.long
@pytest.mark.parametrize("shards", [2, 3])
def test_shards_with_bfloat16_state_move_the_model_as_one_server(shards: int) -> None:
    assert LARGE.parameter_count // 3 > BLOCK
    expected, found = (
        run(1, "gem", state_type="bfloat16", layout=LARGE),
        run(shards, "gem", state_type="bfloat16", layout=LARGE),
    )
    assert found.order == expected.order
    assert np.array_equal(found.theta, expected.theta)
    assert np.array_equal(found.pulled, expected.pulled)


def test_a_pull_of_bfloat16_state_is_of_one_clock_although_commits_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(2, rule="gem", state_type="bfloat16") as group:
        first, second = Worker(group.address, 0), Worker(group.address, 1)
        for worker in (first, second):
            worker.begin()
            worker.pull()
        assert second.commit().applied  # so that the pull changes the snapshot
        pull = Puller.pull

        def commit_between(self: Puller, into: memoryview, payload: PayloadFormat, wanted: Any = None) -> Any:
            if wanted is not None:
                assert second.commit().applied
            return pull(self, into, payload, wanted)

        at_pull = group.parameters()
        monkeypatch.setattr(Puller, "pull", commit_between)
        assert first.pull() == group.clocks()[0] - 1
        assert np.array_equal(first.parameters, at_pull)
        first.end()
        second.end()


def run_at_once(shards: int) -> Float32:
    """Concurrent workers, with overlap, in round robin."""
    with serving(shards, rule="gem", order="round-robin", min_workers=WORKERS, steps=ROUNDS) as group:
        workers = [Worker(group.address, number, overlap=True) for number in range(WORKERS)]
        for worker in workers:
            worker.begin()

        def train(worker: Worker) -> None:
            worker.pull()
            for _ in range(ROUNDS):
                assert worker.commit(base=worker.client.bases[0]).applied

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
