"""What the server tells its telemetry, and what that makes of it."""

import pytest
from gem_server.telemetry.history import Interval
from gem_server.telemetry.telemetry import MOST_NOTED, Telemetry
from gem_server.telemetry.worker_telemetry import NEWEST, WorkerTelemetry

from gem_core import Statistics, create_rule


class Clock:
    """Seconds, and since when the run trains: both the same."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def statistics_of(mean_pi: float) -> Statistics:
    return Statistics(mean_pi, 0.5, 0.25, 1.0, 2.0, 3.0, 4.0)


def note_clock(interval: Interval) -> None:
    interval.clock = 7


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def telemetry(clock: Clock) -> Telemetry:
    return Telemetry(create_rule("gem"), clock, clock, note_clock)


def commit(telemetry: Telemetry, seen: WorkerTelemetry, mean_pi: float = 1.0, loss: float | None = 2.0) -> None:
    statistics = statistics_of(mean_pi)
    telemetry.committed(
        seen,
        statistics,
        staleness=3,
        waited=0.02,
        samples=8,
        local_steps=4,
        loss=loss,
        sample=None,
        clock=seen.measured + 2,
    )


def test_recent_means_begin_with_the_first_commit_and_follow_slowly(telemetry: Telemetry) -> None:
    seen = WorkerTelemetry()
    commit(telemetry, seen, mean_pi=1.0)
    commit(telemetry, seen, mean_pi=3.0)
    telemetry.settle()
    assert seen.distributions is not None
    assert seen.distributions.mean_pi == pytest.approx(1.0 + NEWEST * 2.0)
    assert seen.distributions.blocked == 0.5


def test_every_commit_is_counted_once_however_many_are_noted(telemetry: Telemetry) -> None:
    first, second = WorkerTelemetry(), WorkerTelemetry()
    for _ in range(MOST_NOTED):
        commit(telemetry, first)
        commit(telemetry, second, loss=None)
    commit(telemetry, first)
    telemetry.settle()
    telemetry.settle()
    assert first.distributions is not None
    assert second.distributions is not None
    assert sum(first.distributions.staleness.counts) == first.measured == MOST_NOTED + 1
    assert sum(second.distributions.wait.counts) == second.measured == MOST_NOTED
    assert sum(telemetry.staleness.counts) == sum(telemetry.wait.counts) == 2 * MOST_NOTED + 1
    current = telemetry.history.current
    assert (current.commits, current.losses, current.staleness_max) == (2 * MOST_NOTED + 1, MOST_NOTED + 1, 3)
    assert current.loss / current.losses == pytest.approx(2.0)
    assert first.local_steps == 4 * (MOST_NOTED + 1)
    assert current.local_steps == 4 * (2 * MOST_NOTED + 1)


def test_memory_for_what_is_only_noted_is_bounded(telemetry: Telemetry) -> None:
    seen = WorkerTelemetry()
    for _ in range(MOST_NOTED):
        commit(telemetry, seen)
    assert telemetry.history.current.commits == MOST_NOTED  # without anybody reading


def test_commits_belong_to_the_interval_in_which_they_came(telemetry: Telemetry, clock: Clock) -> None:
    seen = WorkerTelemetry()
    commit(telemetry, seen)
    clock.now = 1.5
    telemetry.tick()
    commit(telemetry, seen)
    commit(telemetry, seen)
    telemetry.run_finished()
    telemetry.run_finished()
    assert [(one.commits, one.ends, one.clock) for one in telemetry.history.intervals] == [(1, 1.5, 7), (2, 1.5, 7)]
