"""What a secondary reports of many workers."""

import pytest
from gem_server.shards.operations import Report, ShardState, WorkerFigures
from gem_server.shards.reporter import INTERVAL_SECONDS, MAX_WORKERS, Reporter
from gem_server.shards.secondary import SecondaryOrder
from gem_server.state.central_variable import CentralVariable
from gem_server.state.workers import Workers
from gem_server.telemetry.telemetry import Telemetry

from gem_core import Statistics, create_rule

WORKERS = 2 * MAX_WORKERS + 1


class Secondary:
    """A reporter of workers who have committed as a test says, and its reports."""

    def __init__(self) -> None:
        self.workers = Workers(WORKERS)
        self.telemetry = Telemetry(create_rule("gem"), lambda: 0.0, lambda: 0.0, lambda _: None)
        self.reports: list[Report] = []
        ordering = SecondaryOrder(lambda: 0.0, primary="", forgets=False)
        ordering.report = self.reports.append
        self._reporter = Reporter(ordering, CentralVariable(), self.workers, self.telemetry)

    def commit(self, worker: int) -> None:
        seen = self.workers.enlist(f"{worker}", set()).telemetry
        statistics = Statistics(0.5, 0.25, 0.125, 1.0, 2.0, 3.0, 4.0)
        self.telemetry.committed(
            seen, statistics, staleness=0, waited=0.0, samples=1, local_steps=1, loss=1.0, sample=None, clock=1
        )

    def at(self, now: float) -> list[Report]:
        self.reports.clear()
        self._reporter.report_if_due(now)
        return list(self.reports)


@pytest.fixture
def secondary() -> Secondary:
    return Secondary()


def names(reports: list[Report]) -> list[str]:
    return [one.worker_name for one in reports if isinstance(one, WorkerFigures)]


def test_reports_come_at_most_once_an_interval(secondary: Secondary) -> None:
    assert len(secondary.at(10.0)) == 1
    assert secondary.at(10.0 + 0.9 * INTERVAL_SECONDS) == []
    assert len(secondary.at(10.0 + INTERVAL_SECONDS)) == 1


def test_sums_are_of_all_commits_and_figures_of_workers_that_committed(secondary: Secondary) -> None:
    for worker in (0, 0, 1):
        secondary.commit(worker)
    state, *figures = secondary.at(0.0)
    assert isinstance(state, ShardState)
    assert (state.commits, state.sums) == (3, (1.5, 0.75, 0.375, 3.0, 6.0, 12.0))
    assert names(figures) == ["0", "1"]
    secondary.commit(1)
    assert names(secondary.at(2.0)) == ["1"]
    assert names(secondary.at(4.0)) == []


def test_of_many_workers_those_that_wait_longest_are_reported(secondary: Secondary) -> None:
    reported = set()
    for second in range(3):
        for worker in range(WORKERS):
            secondary.commit(worker)
        found = names(secondary.at(float(second)))
        assert len(found) == MAX_WORKERS
        reported |= set(found)
    assert reported == {f"{worker}" for worker in range(WORKERS)}
