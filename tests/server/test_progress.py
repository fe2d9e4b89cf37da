"""The progress of a run, in steps of one worker: what schedules of scripts follow."""

import json
import random

import pytest
from gem_server.durability import run_record
from gem_server.state.ledger import Ledger
from gem_server.state.run import Budget
from gem_server.state.sessions import Session
from gem_server.telemetry.run_totals import RunTotals

from .builders import Registry, run


def commit(registry: Registry, *sessions: Session, times: int = 1) -> list[float]:
    """Apply commits of these sessions in turn; return the progress after each."""
    found = []
    for _ in range(times):
        for session in sessions:
            registry.run.reserve(session.worker)
            registry.run.applied(session.worker)
            found.append(registry.run.progress)
    return found


def restarted(before: Registry) -> Registry:
    """The run as another server process has it, from JSON."""
    record = run_record.state_record(before.run, before.sessions.workers, Ledger(10), 0, RunTotals())
    after = Registry(run(before.run.budget))
    run_record.restore(json.loads(json.dumps(record)), after.run, after.sessions.workers, Ledger(10))
    return after


def test_progress_is_the_commits_over_the_workers() -> None:
    registry = Registry()
    workers = [registry.join(number) for number in range(4)]
    assert registry.run.progress == 0
    assert commit(registry, *workers, times=3) == pytest.approx([number / 4 for number in range(1, 13)])


def test_a_worker_that_has_spent_its_budget_counts_on_so_that_all_end_at_their_steps() -> None:
    registry = Registry(run(Budget(steps=6)))
    fast, slow = registry.join(1), registry.join(2)
    assert commit(registry, fast, times=6)[-1] == 3
    registry.sessions.leave(fast, "finished")
    assert commit(registry, slow, times=6)[-1] == 6


@pytest.mark.parametrize(("reason", "progress"), [("done", 2), ("finished", 2), ("KeyboardInterrupt", 3)])
def test_a_worker_that_leaves_counts_on_if_it_has_done_its_part(reason: str, progress: float) -> None:
    registry = Registry()
    first, second = registry.join(1), registry.join(2)
    assert commit(registry, first, second)[-1] == 1
    registry.sessions.leave(first, reason)
    assert commit(registry, second, times=2)[-1] == pytest.approx(progress)


def test_a_worker_that_leaves_without_a_commit_has_done_no_part_of_the_run() -> None:
    registry = Registry()
    trains, looks = registry.join(1), registry.join(2)
    registry.sessions.leave(looks, "done")
    assert commit(registry, trains, times=3) == pytest.approx([1, 2, 3])
    after = restarted(registry)
    assert commit(after, after.join(10, trains.worker.name)) == pytest.approx([4])


def test_the_progress_does_not_jump_when_a_worker_goes_and_its_share_is_not_missed() -> None:
    registry = Registry(run(Budget(steps=10)))
    workers = [registry.join(number) for number in range(3)]
    assert commit(registry, *workers, times=5)[-1] == 5
    registry.sessions.leave(workers.pop(), "KeyboardInterrupt")
    assert commit(registry, *workers) == pytest.approx([5.5, 6])
    assert commit(registry, *workers, times=4)[-1] == pytest.approx(10)


def test_the_progress_waits_for_a_late_worker_and_does_not_fall() -> None:
    registry = Registry()
    early = registry.join(1)
    assert commit(registry, early, times=4)[-1] == 4
    late = registry.join(2)
    assert registry.run.progress == 4
    assert commit(registry, late, times=4) == [4, 4, 4, 4]
    assert commit(registry, early, late) == [4.5, 5]


def test_a_worker_that_comes_back_counts_once() -> None:
    registry = Registry()
    first, second = registry.join(1), registry.join(2)
    commit(registry, first, second, times=2)
    again = registry.join(3, "worker-2")  # it was started again before anybody noticed that it had gone
    assert commit(registry, first, again) == pytest.approx([2.5, 3])
    registry.sessions.leave(again, "done")
    assert commit(registry, first, registry.join(4, "worker-2")) == [3.5, 4]


def test_a_commit_that_is_applied_after_its_worker_left_does_not_change_who_counts() -> None:
    registry = Registry(run(Budget(steps=2)))
    stays, leaves = registry.join(1), registry.join(2)
    commit(registry, stays, leaves)
    registry.run.reserve(leaves.worker)
    registry.sessions.leave(leaves, "interrupted")
    registry.run.applied(leaves.worker)  # its budget is spent, so it has finished
    assert commit(registry, stays) == [2]


def test_the_progress_is_kept_over_a_restart_and_workers_that_are_on_their_way_count() -> None:
    before = Registry(run(Budget(steps=100)))
    workers = [before.join(number) for number in range(4)]
    commit(before, *workers, times=9)
    done = before.join(9)
    commit(before, done)
    before.sessions.leave(done, "done")
    after = restarted(before)
    assert after.run.progress == before.run.progress == 9
    first = after.join(10, "worker-0")
    # Three workers are still expected, and the one that was done counts on: 38 / 5 is less than 9.
    assert commit(after, first) == [9]
    after.sessions.expire(0.0)
    after.now = after.timeout
    after.sessions.get(first.session_id, after.now)
    after.sessions.expire(after.now)  # the others do not come back
    assert commit(after, first) == pytest.approx([9.5])


def test_the_log_has_the_progress_too() -> None:
    registry = Registry()
    state = json.loads(
        json.dumps(run_record.state_record(registry.run, registry.sessions.workers, Ledger(10), 0, RunTotals()))
    )
    commit(registry, registry.join(1), registry.join(2), times=3)
    run_record.advance(state, [json.loads(json.dumps(run_record.totals(registry.run))) | {"entries": []}])
    after = Registry()
    run_record.restore(state, after.run, after.sessions.workers, Ledger(10))
    assert after.run.progress == 3


@pytest.mark.parametrize("seed", range(5))
def test_whoever_comes_and_goes_the_progress_never_falls_and_never_jumps(seed: int) -> None:
    registry, chance = Registry(), random.Random(seed)
    sessions = {0: registry.join(0)}
    before = 0.0
    for number in range(1, 400):
        action = chance.random()
        if action < 0.1:
            sessions[number] = registry.join(number, f"worker-{chance.randrange(6)}")
            sessions = {key: one for key, one in sessions.items() if one.ended is None}
        elif action < 0.2 and len(sessions) > 1:
            gone = sessions.pop(chance.choice(list(sessions)))
            registry.sessions.leave(gone, chance.choice(["done", "lost"]))
        else:
            commit(registry, chance.choice(list(sessions.values())))
        assert before <= registry.run.progress <= before + 1.0001 / len(sessions)
        assert registry.run.progress <= registry.run.commits
        before = registry.run.progress
    assert before > 20
