"""Eta as a function of the clock, and of the end of the run where the workers' budgets say when that is."""

import json
import math

import pytest
from gem_server.durability import run_record
from gem_server.settings import ServerSettings
from gem_server.state.ledger import Ledger
from gem_server.state.run import Budget, Run
from gem_server.state.schedule import EtaSchedule
from gem_server.state.sessions import Session
from gem_server.telemetry.run_totals import RunTotals

from .builders import Registry, session_id


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("constant", EtaSchedule("constant", 0.05)),
        ("warmup:200", EtaSchedule("constant", 0.05, warmup=200)),
        ("warmup:200,constant", EtaSchedule("constant", 0.05, warmup=200)),
        ("cosine", EtaSchedule("cosine", 0.05)),
        ("cosine:5000", EtaSchedule("cosine", 0.05, decay_commits=5000)),
        ("cosine:5000:0.001", EtaSchedule("cosine", 0.05, decay_commits=5000, eta_min=0.001)),
        ("cosine:end:0.001", EtaSchedule("cosine", 0.05, eta_min=0.001)),
        ("warmup:200, cosine", EtaSchedule("cosine", 0.05, warmup=200)),
        ("step:400", EtaSchedule("step", 0.05, step_every=400, step_factor=0.1)),
        ("warmup:9,step:400:0.5", EtaSchedule("step", 0.05, warmup=9, step_every=400, step_factor=0.5)),
    ],
)
def test_a_schedule_is_read_from_its_text(text: str, schedule: EtaSchedule) -> None:
    assert EtaSchedule.parse(text, 0.05) == schedule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is no schedule: write for example cosine, cosine:5000:0.001, step:400:0.1 or warmup:200,cosine"),
        ("linear", "'linear' is no schedule: write for example cosine"),
        ("step", "'step' is no schedule: write for example .* step:400:0.1"),
        ("constant:5", "'constant:5' is no schedule"),
        ("cosine:5000:0.001:1", "'cosine:5000:0.001:1' is no schedule"),
        ("cosine,step:400", "'cosine,step:400' has more than a warm-up and one schedule: write for example"),
        ("cosine,warmup:200", "'cosine,warmup:200' has more than .* or warmup:200,cosine"),
        ("warmup", "'warmup' is no warm-up: write the number of commits, for example warmup:200"),
        ("warmup:0,cosine", "'warmup:0': '0' is no number of commits; write for example"),
        ("step:many", "'step:many': 'many' is no number of commits; write for example"),
        ("step:400:none", "'step:400:none': 'none' is no number; write for example"),
        ("step:400:2", "'step:400:2': the factor is 2, and must be above 0 and at most 1, as in step:400:0.1"),
        ("step:400:0", "'step:400:0': the factor is 0, and must be above 0"),
        ("cosine:0", "'cosine:0': '0' is no number of commits"),
        ("cosine:5000:0.1", "'cosine:5000:0.1': eta would end at 0.1; write a number from 0 to eta, which is 0.05"),
        ("cosine:5000:inf", "'cosine:5000:inf': 'inf' is no number"),
    ],
)
def test_a_text_that_is_no_schedule_is_refused_with_a_right_example(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EtaSchedule.parse(text, 0.05)


def test_a_cosine_until_the_end_of_the_run_needs_a_budget() -> None:
    with pytest.raises(ValueError, match="--eta-schedule cosine ends with the run, which has no budget: add --steps"):
        ServerSettings(eta_schedule="cosine")
    assert ServerSettings(eta_schedule="cosine", steps=9).schedule == EtaSchedule("cosine", 0.002)
    assert ServerSettings(eta_schedule="cosine:9", eta=0.1).schedule == EtaSchedule("cosine", 0.1, decay_commits=9)


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
