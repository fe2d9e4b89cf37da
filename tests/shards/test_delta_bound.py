"""Deltas that are too large, on several servers: each bounds its own range, and the primary decides the quarantine."""

import numpy as np
import pytest
from gem_worker.client import Observer

from tests.shards.group import MODEL, Group, Worker, serving

ROUNDS = 4
HABIT = 20


class Wild(Worker):
    """Its deltas are multiplied by `factors`, one for each element."""

    factors: np.ndarray | float = 1.0

    def delta(self) -> memoryview:
        whole = bytes(super().delta())
        values = np.frombuffer(whole, np.float32, MODEL.parameter_count) * np.float32(self.factors)
        return memoryview(values.tobytes() + whole[values.nbytes :])


def begun(group: Group) -> list[Wild]:
    workers = [Wild(group.address, number) for number in range(3)]
    for worker in workers:
        worker.begin()
        worker.pull()
    for _ in range(ROUNDS):
        for worker in workers:
            worker.commit()
    return workers


def move(group: Group, worker: Wild) -> list[float]:
    """The norm of what a commit adds to each server's range."""
    before = [server.parameters() for server in group.servers]
    assert worker.commit().applied
    return [float(np.linalg.norm(server.parameters() - old)) for server, old in zip(group.servers, before, strict=True)]


def test_each_server_bounds_its_own_range_and_a_quarantine_is_the_primarys() -> None:
    with serving(2, rule="downpour") as group:
        wild, *_ = workers = begun(group)
        usual = move(group, wild)
        second = MODEL.parameter_count - group.servers[1].parameters().size
        wild.factors = np.where(np.arange(MODEL.parameter_count) >= second, 1000.0, 1.0)
        for _ in range(HABIT + 2):
            assert move(group, wild) == pytest.approx(usual, rel=0.2)
        wild.factors = 1000.0
        for _ in range(HABIT):
            assert move(group, wild) == pytest.approx(usual, rel=0.2)
        before = group.parameters()
        outcome = wild.commit()
        assert outcome.verdict.withheld
        assert np.array_equal(group.parameters(), before)
        with Observer(group.address) as observer:
            assert [one["quarantined"] for one in observer.get_status()["workers"]] == [True, False, False]
            assert observer.end_quarantine("worker-0", "it was repaired")
            assert not observer.end_quarantine("worker-0", "it was repaired")
        wild.factors = 1.0
        assert move(group, wild) == pytest.approx(usual, rel=0.2)
        for worker in workers:
            worker.end()
