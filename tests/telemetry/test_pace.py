"""Workers' speed against each other."""

import pytest
from gem_server.telemetry.pace import Pace
from gem_server.telemetry.worker_telemetry import WorkerTelemetry


class Clock:
    """Seconds that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Workers:
    """Workers that commit; each has seconds per step, and steps per commit."""

    def __init__(self, *speeds: tuple[float, int]) -> None:
        self._clock = Clock()
        self._pace = Pace(self._clock)
        self._speeds = speeds
        self._seen = [WorkerTelemetry() for _ in speeds]
        self.counts = 0
        self._due = [100.0 + seconds * steps for seconds, steps in speeds]

    def commit(self, number: int, after: float = 0.0) -> float:
        asked_at = self._due[number] + after
        self._clock.now = max(self._clock.now, asked_at)
        seconds, steps = self._speeds[number]
        self._due[number] = self._clock.now + seconds * steps
        return self._pace.relative_speed(self._seen[number], steps, asked_at, self._training)

    def _training(self) -> list[WorkerTelemetry]:
        self.counts += 1
        return self._seen

    def train_in_turn(self, rounds: int) -> list[float]:
        return [[self.commit(number) for number in range(len(self._seen))] for _ in range(rounds)][-1]

    def train(self, commits: int) -> list[float]:
        """Commits in the order in which they are due; the workers' last speeds."""
        speeds = [0.0] * len(self._seen)
        for _ in range(commits):
            number = min(range(len(self._due)), key=self._due.__getitem__)
            speeds[number] = self.commit(number)
        return speeds


def test_a_speed_is_the_median_seconds_of_a_step_over_the_workers() -> None:
    assert Workers((0.1, 8), (0.2, 8), (0.8, 2)).train(60) == pytest.approx([2.0, 1.0, 0.25])


def test_waits_for_a_turn_are_not_the_workers() -> None:
    assert Workers((0.1, 8), (0.2, 8), (0.8, 8)).train_in_turn(60) == pytest.approx([2.0, 1.0, 0.25])


def test_the_median_is_counted_once_in_a_round_of_commits() -> None:
    workers = Workers(*[(0.1, 8)] * 50)
    workers.train_in_turn(1)
    assert workers.counts <= 2
    workers.train_in_turn(20)
    assert workers.counts <= 22


def test_steps_and_not_commits_count() -> None:
    assert Workers((0.1, 1), (0.1, 8), (0.1, 30)).train(200) == pytest.approx([1.0, 1.0, 1.0])


def test_a_first_commit_has_no_speed_and_one_worker_that_of_the_median() -> None:
    workers = Workers((0.1, 8))
    assert workers.commit(0) == 0.0
    assert workers.commit(0) == pytest.approx(1.0)


def test_a_pause_is_not_a_slow_step() -> None:
    workers = Workers((0.1, 8), (0.1, 8), (0.1, 8))
    workers.train(30)
    assert workers.commit(0, after=3600.0) > 0.6
