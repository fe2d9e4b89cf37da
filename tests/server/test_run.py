import pytest
from gem_server.errors import Reason, RefusedError
from gem_server.state.run import Budget, Run, RunState
from gem_server.state.workers import Worker

from .builders import run


def commit(the_run: Run, worker: Worker) -> None:
    the_run.reserve(worker)
    the_run.applied(worker)


def test_training_starts_with_parameters_and_enough_workers() -> None:
    the_run = run(min_workers=2)
    for has_parameters, live in ((False, 5), (True, 1)):
        the_run.consider_start(has_parameters, live)
        assert the_run.state is RunState.WAITING
    the_run.consider_start(True, 2)
    assert the_run.state is RunState.TRAINING
    the_run.consider_start(True, 0)
    assert the_run.state is RunState.TRAINING  # once started, a worker that goes does not stop it


def test_finished_run_does_not_start_and_end_again_when_workers_come_back() -> None:
    the_run = run()
    the_run.finish("1 commits")
    heard: list[RunState] = []
    the_run.on_change.append(lambda: heard.append(the_run.state))
    the_run.consider_start(True, 1)
    assert heard == []
    assert the_run.state is RunState.FINISHED


def test_total_budget_is_spent_by_exactly_so_many_commits() -> None:
    the_run, worker = run(Budget(commits=3)), Worker("a", 0)
    for _ in range(3):
        commit(the_run, worker)
    assert the_run.state is RunState.FINISHED
    with pytest.raises(RefusedError) as refused:
        the_run.reserve(worker)
    assert refused.value.reason is Reason.RUN_FINISHED


def test_budget_is_reserved_when_a_commit_is_complete_not_when_it_is_applied() -> None:
    the_run, a, b = run(Budget(commits=2)), Worker("a", 0), Worker("b", 1)
    the_run.reserve(a)
    the_run.reserve(b)
    with pytest.raises(RefusedError):
        the_run.reserve(a)
    the_run.applied(a)
    the_run.applied(b)
    assert (the_run.commits, the_run.reserved, the_run.state) == (2, 0, RunState.FINISHED)


def test_worker_that_spent_its_steps_is_finished_while_the_run_goes_on() -> None:
    the_run, a, b = run(Budget(steps=1)), Worker("a", 0, limit=1), Worker("b", 1, limit=1)
    the_run.consider_start(True, 2)
    commit(the_run, a)
    the_run.consider_finish([a, b], anyone_done=True, workers=2)
    assert (the_run.state_for(a), the_run.state_for(b)) == (RunState.FINISHED, RunState.TRAINING)
    commit(the_run, b)
    the_run.consider_finish([a, b], anyone_done=True, workers=2)
    assert the_run.state is RunState.FINISHED


def test_run_is_not_finished_while_nobody_has_spent_anything() -> None:
    the_run = run(Budget(steps=5))
    the_run.consider_start(True, 1)
    the_run.consider_finish([], anyone_done=False, workers=2)
    assert the_run.state is RunState.TRAINING


@pytest.mark.parametrize(
    ("budget", "steps_per_epoch", "limit"),
    [
        (Budget(), 10, None),
        (Budget(steps=7), 10, 7),
        (Budget(epochs=1.5), 10, 15),
        (Budget(epochs=1.01), 10, 11),
        (Budget(epochs=2.2), 100, 220),
        (Budget(epochs=1.1), 50, 55),
        (Budget(epochs=2), 0, None),
        (Budget(steps=7, epochs=2), 10, 7),
        (Budget(steps=70, epochs=2), 10, 20),
        (Budget(epochs=10, local_steps=8), 9, 12),
        (Budget(steps=7, epochs=10, local_steps=8), 9, 7),
    ],
)
def test_limit_of_a_worker(budget: Budget, steps_per_epoch: int, limit: int | None) -> None:
    assert budget.limit_of(steps_per_epoch) == limit


def test_listeners_hear_each_change_once() -> None:
    the_run = run()
    heard: list[RunState] = []
    the_run.on_change.append(lambda: heard.append(the_run.state))
    the_run.consider_start(True, 1)
    the_run.consider_start(True, 2)
    the_run.finish("enough")
    the_run.finish("again")
    assert heard == [RunState.TRAINING, RunState.FINISHED]
    assert the_run.finished_because == "enough"
