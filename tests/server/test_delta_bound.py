"""Which deltas are too large, decided by the norms of the other workers' deltas."""

import random

import pytest
from gem_server.state.delta_bound import ENOUGH, WINDOW, DeltaBound, end_quarantine
from gem_server.state.workers import Worker
from gem_server.telemetry.recent_commits import HABIT, REMEMBERED

FACTOR = 10.0


class Commits:
    """Workers that commit in turns, each with a norm of about 1."""

    def __init__(self, count: int, bound: DeltaBound | None = None) -> None:
        self.bound = bound or DeltaBound(FACTOR)
        self.workers = [Worker(f"worker-{rank}", rank) for rank in range(count)]
        self._random = random.Random(0)

    def judge(self, rank: int, norm: float, eta: float = 1.0) -> float:
        return self.bound.judge(self.workers[rank], norm, eta).factor

    def usual(self, rounds: int, eta: float = 1.0, size: float = 1.0) -> list[float]:
        """The factors of usual commits of all workers."""
        return [
            self.judge(rank, size * eta * self._random.uniform(0.8, 1.25), eta)
            for _ in range(rounds)
            for rank in range(len(self.workers))
        ]


def test_usual_deltas_are_applied_as_they_are() -> None:
    commits = Commits(4)
    assert set(commits.usual(100)) == {1.0}
    assert [worker.scaled for worker in commits.workers] == [0] * 4


def test_a_delta_that_is_too_large_gets_the_norm_of_the_others_median() -> None:
    commits = Commits(4)
    for _ in range(ENOUGH):
        for rank, norm in enumerate((1.0, 2.0, 3.0, 4.0)):
            commits.judge(rank, norm)
    assert commits.judge(3, 20.0) == 1.0  # the others' median is 2
    assert 50.0 * commits.judge(3, 50.0) == pytest.approx(2.0)
    assert 50.0 * commits.judge(0, 50.0) == pytest.approx(3.0)
    assert [worker.scaled for worker in commits.workers] == [1, 0, 0, 1]


def test_nothing_is_bounded_before_the_others_have_enough_commits() -> None:
    commits = Commits(2)
    for _ in range(100):
        assert commits.judge(0, 1.0) == 1.0
        assert commits.judge(0, 1000.0) == 1.0  # it is alone
    for _ in range(ENOUGH - 1):
        assert commits.judge(1, 1.0) == 1.0
    assert commits.judge(0, 1e6) == 1.0
    commits.judge(1, 1.0)
    assert commits.judge(0, 1e6) < 1.0


def test_norms_are_taken_per_unit_of_eta() -> None:
    commits = Commits(3)
    commits.usual(ENOUGH, eta=0.001)
    assert commits.judge(0, 1.0, eta=1.0) == 1.0
    assert commits.judge(0, 1.0, eta=0.001) < 1.0


def test_with_an_eta_of_zero_the_scale_is_unknown() -> None:
    """As with groups of parameters that a script freezes and thaws by their learning rates."""
    commits = Commits(3)
    for eta in (0.0, 0.001, 0.0, 1.0):
        for _ in range(HABIT):
            for rank in range(3):
                assert commits.judge(rank, eta or 0.5, eta) == 1.0
    assert commits.judge(0, 50.0, eta=0.0) == 1.0
    assert commits.judge(0, 50.0, eta=1.0) == pytest.approx(0.02)


def test_deltas_of_zero_say_nothing_about_the_scale() -> None:
    commits = Commits(3)
    for _ in range(10 * ENOUGH):
        for rank in range(3):
            assert commits.judge(rank, 0.0) == 1.0
    assert commits.judge(0, 1.0) == 1.0


def test_a_minority_moves_the_bound_of_nobody() -> None:
    commits = Commits(5)
    for _ in range(HABIT):
        for rank in range(5):
            factor = commits.judge(rank, 1000.0 if rank < 2 else 1.0)
            assert factor == 1.0 or rank < 2
    assert commits.judge(2, 15.0) < 1.0
    assert commits.judge(0, 1000.0) < 1.0


def test_a_fast_worker_counts_no_more_than_a_slow_one() -> None:
    commits = Commits(4)
    for _ in range(ENOUGH):
        for _ in range(20):
            commits.judge(0, 9.0)
        for rank in (1, 2, 3):
            commits.judge(rank, 1.0)
    assert commits.judge(1, 15.0) == pytest.approx(1 / 15)


def test_the_bound_follows_when_all_gradients_become_larger() -> None:
    commits = Commits(4)
    commits.usual(20)
    factors = commits.usual(20, size=100.0)
    assert min(factors) < 1.0
    assert set(factors[4 * WINDOW :]) == {1.0}
    assert not any(worker.quarantined for worker in commits.workers)


def test_half_of_the_last_commits_begin_a_quarantine_which_only_an_operator_ends() -> None:
    commits = Commits(4)
    commits.usual(20)
    bad = commits.workers[0]
    for _ in range(HABIT - 1):
        assert 0 < commits.judge(0, 100.0) < 1
        commits.judge(0, 1.0)
    assert not bad.quarantined
    last = commits.bound.judge(bad, 100.0, 1.0)
    assert last.begins_quarantine
    assert last.factor > 0
    assert bad.quarantined
    assert commits.judge(0, 1.0) == 0.0
    commits.bound.forget(bad.name)  # it leaves and joins again
    assert [commits.judge(0, 1.0) for _ in range(2 * REMEMBERED)] == [0.0] * 2 * REMEMBERED
    assert bad.scaled == HABIT + 1 + 2 * REMEMBERED
    assert end_quarantine(bad)
    assert not end_quarantine(bad)
    assert commits.judge(0, 1.0) == 1.0
    assert 0 < commits.judge(0, 100.0) < 1


def test_another_server_decides_about_the_quarantine() -> None:
    commits = Commits(3, DeltaBound(FACTOR, quarantines=False))
    commits.usual(ENOUGH)
    assert min(commits.judge(0, 100.0) for _ in range(2 * HABIT)) > 0
    assert not commits.workers[0].quarantined


def test_workers_that_have_gone_count_no_more() -> None:
    commits = Commits(4)
    for _ in range(ENOUGH):
        for rank in range(4):
            commits.judge(rank, 100.0 if rank < 2 else 1.0)
    assert commits.judge(3, 50.0) == 1.0
    for rank in (0, 1):
        commits.bound.forget(commits.workers[rank].name)
    commits.bound.forget("nobody")
    assert commits.judge(3, 50.0) == pytest.approx(1 / 50)
    late = commits.bound.judge(commits.workers[0], 50.0, 1.0, has_session=False)
    assert late.factor < 1
    assert commits.judge(3, 50.0) == pytest.approx(1 / 50)


def test_a_factor_of_zero_switches_it_off() -> None:
    assert not DeltaBound(0).is_on
    assert DeltaBound(FACTOR).is_on
