"""Schedules that follow the run: of workers of different speed, of restarted ones, called in every way."""

import copy
import pickle
from typing import Any

import pytest
from gem_worker import ParameterServer, UnsupportedOptimizerError
from gem_worker.followed_schedule import FollowedSchedule, Position, as_schedulers
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)

TOTAL = 40


def an_optimizer() -> SGD:
    return SGD(nn.Linear(2, 1).parameters(), lr=1.0, momentum=0.9)


SCHEDULES: dict[str, Any] = {
    "lambda": lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, TOTAL),
    "warm restarts": lambda optimizer: CosineAnnealingWarmRestarts(optimizer, 7),
    "one cycle": lambda optimizer: OneCycleLR(optimizer, 0.5, total_steps=TOTAL),
    "sequential": lambda optimizer: SequentialLR(
        optimizer, [LinearLR(optimizer, 0.1, total_iters=5), CosineAnnealingLR(optimizer, TOTAL - 5)], [5]
    ),
    "sequential one cycle": lambda optimizer: SequentialLR(
        optimizer, [ConstantLR(optimizer, 0.1, 10), OneCycleLR(optimizer, 0.5, total_steps=TOTAL - 10)], [10]
    ),
    "chained": lambda optimizer: ChainedScheduler([ConstantLR(optimizer, 0.1, 10), ExponentialLR(optimizer, 0.9)]),
}


class Run:
    """Commits of all workers."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.commits = 0


class Worker:
    """A worker's loop: steps, and calls of its scheduler."""

    def __init__(self, run: Run, create: Any) -> None:
        self.run = run
        self.progress = run.commits / run.workers
        self.commits = 0.0
        self.optimizer = an_optimizer()
        self.scheduler: LRScheduler = create(self.optimizer)
        self.followed = FollowedSchedule(self.scheduler, lambda: Position(self.progress, self.commits))

    def step(self) -> None:
        self.optimizer.step()
        self.run.commits += 1
        self.commits += 1
        self.progress = self.run.commits / self.run.workers

    @property
    def rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])


def rates_alone(create: Any, steps: int = TOTAL) -> list[float]:
    optimizer = an_optimizer()
    scheduler = create(optimizer)
    rates = [optimizer.param_groups[0]["lr"]]
    for _ in range(steps - 1):
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


@pytest.mark.parametrize("kind", SCHEDULES)
def test_one_workers_schedule_is_the_scripts(kind: str) -> None:
    worker = Worker(Run(1), SCHEDULES[kind])
    found = [worker.rate]
    for _ in range(TOTAL - 1):
        worker.step()
        worker.scheduler.step()
        found.append(worker.rate)
    assert found == rates_alone(SCHEDULES[kind])


@pytest.mark.parametrize("kind", SCHEDULES)
def test_schedules_of_fast_and_slow_workers_stand_where_the_run_does(kind: str) -> None:
    run, alone = Run(3), rates_alone(SCHEDULES[kind])
    workers = [Worker(run, SCHEDULES[kind]) for _ in range(3)]
    turn = [0, 0, 0, 0, 1, 1, 1, 2]  # the slow worker makes an eighth of the steps
    for number in range(3 * TOTAL - 2):
        worker = workers[turn[number % len(turn)]]
        worker.step()
        worker.scheduler.step()
        assert worker.rate == alone[min(round(worker.progress), TOTAL - 1)]
    assert workers[0].commits > TOTAL, "alone, its schedule would have ended"


@pytest.mark.parametrize("kind", ["one cycle", "sequential one cycle"])
def test_one_cycle_does_not_end_with_an_error(kind: str) -> None:
    worker = Worker(Run(1), SCHEDULES[kind])
    for _ in range(2 * TOTAL):
        worker.step()
        worker.scheduler.step()
    assert worker.rate == rates_alone(SCHEDULES[kind])[-1]


def test_a_scheduler_that_steps_once_an_epoch_counts_epochs_of_the_run() -> None:
    run = Run(2)
    fast, slow = (Worker(run, SCHEDULES["cosine"]) for _ in range(2))
    for _ in range(12):
        for _ in range(3):
            fast.step()
        slow.step()
        if slow.commits % 3 == 0:
            slow.scheduler.step()
    # 48 commits of two workers are 24 of one, and an epoch is 3.
    assert slow.rate == rates_alone(SCHEDULES["cosine"])[8]


@pytest.mark.parametrize("steps", [1, 4], ids=["each step", "each epoch"])
def test_a_loop_that_calls_its_scheduler_first_is_where_the_run_is_also_when_it_starts_again(steps: int) -> None:
    """Old scripts call it when an epoch begins. A restarted worker then has no step from which a share could follow."""
    run = Run(1)
    first, again = (Worker(run, SCHEDULES["cosine"]) for _ in range(2))
    found = []
    for worker in [first] * 5 + [again] * 3:
        worker.progress = run.commits
        worker.scheduler.step()
        found.append(worker.scheduler.last_epoch)
        for _ in range(steps):
            worker.step()
    assert found == [1, 2, 3, 4, 5, 0, 6, 7]


def test_steps_that_are_not_committed_yet_count_in_part() -> None:
    """With every=4, for example, the position has quarters of commits."""
    worker = Worker(Run(1), SCHEDULES["cosine"])
    alone = rates_alone(SCHEDULES["cosine"])
    for step in range(1, 12):
        worker.optimizer.step()
        worker.progress = worker.commits = step / 4
        worker.scheduler.step()
        assert worker.rate == alone[step]


def test_a_restarted_workers_schedule_catches_up_at_its_first_call() -> None:
    run = Run(1)
    run.commits = 17
    worker = Worker(run, SCHEDULES["sequential"])
    worker.step()
    worker.scheduler.step()
    assert worker.rate == rates_alone(SCHEDULES["sequential"])[18]


def test_a_restored_schedule_is_where_the_run_is() -> None:
    run = Run(1)
    first = Worker(run, SCHEDULES["cosine"])
    for _ in range(9):
        first.step()
        first.scheduler.step()
    saved = copy.deepcopy(first.scheduler.state_dict())
    assert "step" not in saved
    second = Worker(run, SCHEDULES["cosine"])
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.scheduler.load_state_dict(saved)
    second.step()
    second.scheduler.step()
    assert second.rate == pytest.approx(rates_alone(SCHEDULES["cosine"])[10])
    assert second.scheduler.last_epoch == 10


def test_a_schedule_that_is_restored_within_an_epoch_stands_where_the_runs_epochs_do() -> None:
    """The rest of an epoch is shorter than an epoch, so the first call must not determine how long epochs are."""
    run = Run(1)
    worker = Worker(run, SCHEDULES["cosine"])
    found = []
    for steps in (20, 20, 20, 2, 20, 20):
        if steps == 2:
            first, worker = worker, Worker(run, SCHEDULES["cosine"])
            worker.scheduler.load_state_dict(copy.deepcopy(first.scheduler.state_dict()))
        for _ in range(steps):
            worker.step()
        worker.scheduler.step()
        found.append(worker.scheduler.last_epoch)
    assert found == [1, 2, 3, 4, 4, 5]


@pytest.mark.parametrize("calls", [1, 2], ids=["once a step", "twice a step"])
def test_a_worker_that_joins_late_stands_where_the_run_is_however_often_it_calls(calls: int) -> None:
    run = Run(1)
    run.commits = 10
    worker = Worker(run, lambda optimizer: LambdaLR(optimizer, float))
    found = []
    for _ in range(3):
        worker.step()
        for _ in range(calls):
            worker.scheduler.step()
        found.append(worker.scheduler.last_epoch)
    assert found == [11 * calls, 12 * calls, 13 * calls]


@pytest.mark.parametrize("steps", [1, 4], ids=["each step", "each epoch"])
def test_a_restored_schedule_goes_on_in_a_new_run(steps: int) -> None:
    """The script has loaded a checkpoint, and brings its parameters to an empty server."""
    run = Run(1)
    for _ in range(2):  # the second worker joins later, with the same checkpoint
        worker = Worker(run, SCHEDULES["lambda"])
        worker.scheduler.load_state_dict(worker.scheduler.state_dict() | {"last_epoch": 50})
        found = []
        for _ in range(3):
            for _ in range(steps):
                worker.step()
            worker.scheduler.step()
            found.append(worker.scheduler.last_epoch)
        assert found == [51, 52, 53]


def test_a_restored_schedule_that_is_stepped_before_the_first_step_of_a_new_run_goes_on() -> None:
    worker = Worker(Run(1), SCHEDULES["cosine"])
    worker.scheduler.load_state_dict(worker.scheduler.state_dict() | {"last_epoch": 20})
    worker.scheduler.step()
    assert worker.scheduler.last_epoch == 21


class WarmedUp(LRScheduler):
    """A scheduler as other packages have: after 3 steps another one sets the rate, and this one stops counting."""

    def __init__(self, optimizer: SGD) -> None:
        self.after = ExponentialLR(optimizer, 0.5)
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        return [rate * self.last_epoch / 3 for rate in self.base_lrs]

    def step(self, epoch: int | None = None) -> None:
        if self.last_epoch < 3:
            super().step(epoch)
        else:
            self.after.step()


class Uncounted(LRScheduler):
    """A scheduler that overrides `step`, and leaves last_epoch at -1."""

    def __init__(self, optimizer: SGD) -> None:
        self.steps = -1
        super().__init__(optimizer)

    def step(self, epoch: int | None = None) -> None:
        self.steps += 1
        self.optimizer.param_groups[0]["lr"] = 1 / (1 + self.steps)


@pytest.mark.parametrize("kind", [WarmedUp, Uncounted])
def test_schedulers_that_do_not_count_all_their_steps_move_once_a_step_too(kind: type[Any]) -> None:
    worker = Worker(Run(1), kind)
    found = [worker.rate]
    for _ in range(9):
        worker.step()
        worker.scheduler.step()
        found.append(worker.rate)
    assert found == rates_alone(kind, 10)


def test_a_scheduler_that_is_named_twice_is_followed_once() -> None:
    scheduler = SCHEDULES["cosine"](an_optimizer())
    assert as_schedulers([scheduler, scheduler]) == (scheduler,)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_scheduler_of_another_optimizer_is_refused_before_the_run_is_joined(kind: str) -> None:
    model = nn.Linear(2, 1)
    own, other = (SGD(model.parameters(), lr=1.0, momentum=0.9) for _ in range(2))
    ParameterServer("127.0.0.1:1", model, optimizer=own, scheduler=SCHEDULES[kind](own))
    with pytest.raises(ValueError, match="of another optimizer than optimizer=: create it from that one"):
        ParameterServer("127.0.0.1:1", model, optimizer=own, scheduler=SCHEDULES[kind](other))


def test_a_schedule_never_goes_back() -> None:
    worker = Worker(Run(1), SCHEDULES["lambda"])
    for _ in range(5):
        worker.step()
        worker.scheduler.step()
    worker.progress = 2.0  # of a server that was restarted from a checkpoint
    worker.scheduler.step()
    assert worker.rate == 1 / 6


@pytest.mark.parametrize(("commits", "calls", "is_warned"), [(8, 0, True), (8, 2, False), (0, 0, False)])
def test_a_scheduler_that_the_script_never_steps_is_warned_of_at_the_end(
    commits: int, calls: int, is_warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = SCHEDULES["cosine"](an_optimizer())
    followed = FollowedSchedule(scheduler, lambda: Position(float(commits), commits))
    for _ in range(calls):
        scheduler.step()
    followed.close()
    assert ["never stepped" in one.getMessage() for one in caplog.records] == [True] * is_warned


def test_after_the_block_a_scheduler_steps_by_itself() -> None:
    worker = Worker(Run(100), SCHEDULES["lambda"])
    kind = type(worker.scheduler)
    assert issubclass(kind, LambdaLR)
    worker.step()
    worker.scheduler.step()
    assert worker.rate == 1.0
    worker.followed.close()
    assert type(worker.scheduler) is LambdaLR
    worker.scheduler.step()
    assert worker.rate == 0.5


@pytest.mark.parametrize("save", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copied", "saved"])
def test_a_copy_made_in_the_block_has_its_own_steps_and_leaves_the_original(save: Any) -> None:
    """A script may make one to plot its schedule, or save the whole scheduler."""
    scheduler = CosineAnnealingLR(an_optimizer(), TOTAL)
    followed = FollowedSchedule(scheduler, lambda: Position(3, 1))
    scheduler.step()
    assert scheduler.last_epoch == 3
    other = save(scheduler)
    other.step()
    assert (type(other), other.last_epoch, scheduler.last_epoch) == (CosineAnnealingLR, 4, 3)
    assert other.optimizer is not scheduler.optimizer
    scheduler.step()
    assert scheduler.last_epoch == 6
    followed.close()


def test_setting_the_position_is_refused_with_the_fix() -> None:
    worker = Worker(Run(1), SCHEDULES["warm restarts"])
    with pytest.raises(UnsupportedOptimizerError, match=r"ps\.progress"):
        worker.scheduler.step(1.5)  # type: ignore[arg-type]


def test_schedulers_that_do_not_count_steps_are_refused_with_the_reason() -> None:
    optimizer = an_optimizer()
    with pytest.raises(UnsupportedOptimizerError, match="losses of one worker"):
        as_schedulers(ReduceLROnPlateau(optimizer))
    with pytest.raises(TypeError, match=r"ps\.progress"):
        as_schedulers([object()])  # type: ignore[list-item]
    model = nn.Linear(2, 1)
    with pytest.raises(ValueError, match="pass optimizer="):
        ParameterServer("localhost:1", model, scheduler=LambdaLR(optimizer, float))
