"""Eta as a function of the clock, and of the end of the run where the workers' budgets say when that is."""

import json
import math

import pytest
from gem_server.durability import run_record
from gem_server.state.ledger import Ledger
from gem_server.state.run import Budget, Run
from gem_server.state.schedule import EtaSchedule
from gem_server.state.sessions import Session
from gem_server.telemetry.run_totals import RunTotals

from .builders import Registry, session_id


def test_constant_eta_stays() -> None:
    schedule = EtaSchedule("constant", 0.05)
    assert [schedule.at(commits) for commits in (0, 1, 10**9)] == [0.05] * 3


def test_warm_up_rises_linearly_to_the_full_value() -> None:
    schedule = EtaSchedule("constant", 0.1, warmup=4)
    assert [schedule.at(commits) for commits in range(6)] == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1])


def test_step_schedule_multiplies_after_every_interval_counted_from_the_warm_up() -> None:
    schedule = EtaSchedule("step", 1.0, warmup=10, step_every=100, step_factor=0.5)
    assert [schedule.at(commits) for commits in (10, 109, 110, 209, 210)] == pytest.approx([1, 1, 0.5, 0.5, 0.25])


def test_cosine_schedule_goes_from_eta_to_eta_min_and_stays_there() -> None:
    schedule = EtaSchedule("cosine", 1.0, decay_commits=100, eta_min=0.2)
    assert [schedule.at(commits) for commits in (0, 50, 100, 500)] == pytest.approx([1.0, 0.6, 0.2, 0.2])


def cosine(**budget: float) -> Registry:
    """A registry of a run whose cosine ends with it, once it has begun."""
    registry = Registry(run=Run(Budget(**budget), EtaSchedule("cosine", 1.0), 1))  # type: ignore[arg-type]
    registry.run.consider_start(True, 1)
    return registry


def commit(registry: Registry, session: Session, times: int = 1) -> list[float]:
    """Next eta after each of these commits."""
    etas = []
    for _ in range(times):
        registry.run.reserve(session.worker)
        registry.run.applied(session.worker)
        etas.append(registry.run.next_eta)
    return etas


def falls(commits: int, end: int) -> float:
    return (1 + math.cos(math.pi * commits / end)) / 2


def test_cosine_falls_over_the_steps_of_all_workers_however_many_were_waited_for() -> None:
    registry = cosine(steps=4)
    workers = [registry.join(number) for number in (1, 2, 3)]
    etas = [registry.run.next_eta] + [eta for _ in range(4) for worker in workers for eta in commit(registry, worker)]
    assert etas == pytest.approx([falls(commits, 12) for commits in range(13)])


def test_cosine_falls_over_the_epochs_of_workers_with_data_of_different_length() -> None:
    registry = cosine(epochs=2)
    short, long = registry.join(1, steps_per_epoch=2), registry.join(2, steps_per_epoch=4)
    assert commit(registry, short, 4) == pytest.approx([falls(commits, 12) for commits in (1, 2, 3, 4)])
    registry.sessions.leave(short)  # it has nothing left
    assert commit(registry, long, 8)[-1] == 0.0


def test_cosine_ends_with_the_commits_in_all_where_the_workers_may_make_more() -> None:
    registry = cosine(steps=10, commits=8)
    registry.join(2)
    assert commit(registry, registry.join(1), 8) == pytest.approx([falls(commits, 8) for commits in range(1, 9)])


def test_cosine_is_longer_for_a_late_worker_and_shorter_without_one_until_it_is_back() -> None:
    registry = cosine(steps=10)
    first = registry.join(1)
    assert commit(registry, first, 5)[-1] == pytest.approx(falls(5, 10))
    late = registry.join(2)
    assert registry.run.next_eta == pytest.approx(falls(5, 20))
    commit(registry, late, 2)
    registry.sessions.leave(late)
    assert registry.run.next_eta == pytest.approx(falls(7, 12))
    late = registry.join(3, "worker-2")
    assert registry.run.next_eta == pytest.approx(falls(7, 20))
    again = registry.join(4, "worker-2")  # it was started again, before anybody noticed that it had gone
    assert registry.run.next_eta == pytest.approx(falls(7, 20))
    commit(registry, again, 8)
    assert commit(registry, first, 5)[-1] == 0.0


def test_a_commit_that_is_applied_after_its_worker_left_counts_once() -> None:
    registry = cosine(steps=4)
    stays, leaves = registry.join(1), registry.join(2)
    registry.run.reserve(leaves.worker)
    registry.sessions.leave(leaves)
    registry.run.applied(leaves.worker)
    assert registry.run.next_eta == pytest.approx(falls(1, 5))
    assert registry.run.expected_commits == 5
    assert commit(registry, stays, 4)[-1] == 0.0


def test_cosine_goes_on_after_a_restart_whether_workers_are_back_already_or_not() -> None:
    before = cosine(epochs=10)
    first, second = before.join(1, steps_per_epoch=1), before.join(2, steps_per_epoch=3)
    gone = before.join(3, steps_per_epoch=50)
    commit(before, first, 3)
    commit(before, second, 7)
    before.sessions.leave(gone)
    saved = json.loads(
        json.dumps(run_record.state_record(before.run, before.sessions.workers, Ledger(10), 0, RunTotals()))
    )

    after = cosine(epochs=10)
    run_record.restore(saved, after.run, after.sessions.workers, Ledger(10))
    assert after.run.next_eta == before.run.next_eta == pytest.approx(falls(10, 40))
    after.join(4, "worker-1", steps_per_epoch=1)
    assert after.run.next_eta == before.run.next_eta
    after.sessions.expire(0.0)
    after.sessions.get(session_id(4), after.timeout)
    after.sessions.expire(after.timeout)  # the other one does not come back
    assert after.run.next_eta == pytest.approx(falls(10, 17))
