"""The estimate of how long a run still takes."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from gem_server.telemetry.time_left import TimeLeft, Track, WorkerProgress

TICK = 0.5
Rate = Callable[[float], float]


def estimates(rate: Rate, budget: int, seconds: float) -> Iterator[tuple[float, float | None]]:
    """Times and estimates of a run with a budget of commits, at a rate that depends on the time."""
    time_left, now, commits = TimeLeft(), 0.0, 0.0
    while now < seconds:
        time_left.update(now, int(commits), budget - int(commits), ())
        yield now, time_left.seconds
        commits += TICK * rate(now)
        now += TICK


def largest_jump(found: Iterator[tuple[float, float | None]], since: float) -> float:
    """By which factor the estimate of the end changed between two ticks, at most."""
    known = [left for now, left in found if now >= since and left is not None]
    return max(max(one, other) / min(one, other) for one, other in pairwise(known))


def test_at_a_constant_rate_the_estimate_is_exact() -> None:
    for now, left in estimates(lambda _: 20.0, 10_000, 300.0):
        if now >= 2.0:
            assert left == pytest.approx((10_000 - 20.0 * now) / 20.0)


@pytest.mark.parametrize(
    ("rate", "what"),
    [
        (lambda now: 0.0 if now % 60 < 10 else 50.0, "all workers evaluate for 10 s a minute"),
        (lambda now: 50.0 if now < 120 else 100.0, "as many workers again have joined"),
        (lambda now: 100.0 if now < 120 else 50.0, "half of the workers have left"),
        (lambda now: 100.0 if int(now) % 2 else 50.0, "commits come in bursts"),
        (lambda now: 2.0 if now < 15 else 80.0, "the first steps compile"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_estimate_never_jumps_by_half(rate: Rate, what: str) -> None:
    assert largest_jump(estimates(rate, 100_000, 600.0), since=30.0) < 1.15, what


def test_after_a_change_the_estimate_comes_to_what_is_true() -> None:
    *_, (now, left) = estimates(lambda now: 100.0 if now < 120 else 50.0, 100_000, 300.0)
    commits = 120 * 100.0 + (now - 120) * 50.0
    assert left == pytest.approx((100_000 - commits) / 50.0, rel=0.05)


class Workers:
    """A run in which each worker has a budget of its own."""

    def __init__(self, budget: int, rates: dict[str, float]) -> None:
        self.budget, self.rates = budget, rates
        self.commits = dict.fromkeys(rates, 0.0)
        self.time_left, self.now = TimeLeft(), 0.0

    def run(self, seconds: float) -> float | None:
        """Train for so long; return the newest estimate."""
        for _ in range(int(seconds / TICK)):
            self.now += TICK
            for name, rate in self.rates.items():
                self.commits[name] = min(self.budget, self.commits.get(name, 0.0) + TICK * rate)
            live = [
                WorkerProgress(name, int(self.commits[name]), self.budget - int(self.commits[name]))
                for name in self.rates
            ]
            self.time_left.update(self.now, int(sum(self.commits.values())), None, [one for one in live if one.left])
        return self.time_left.seconds


def test_the_slowest_worker_decides_where_each_has_a_budget() -> None:
    run = Workers(3_000, {"fast": 20.0, "slow": 10.0})
    assert run.run(60) == pytest.approx(240, rel=0.02)


def test_it_changes_little_when_a_worker_leaves_and_comes_back() -> None:
    run = Workers(6_000, {"a": 10.0, "b": 10.0})
    before = run.run(100)
    del run.rates["b"]
    without = run.run(1)
    run.run(10)
    run.rates["b"] = 2.0  # its first steps are slow
    back = run.run(1)
    assert before == pytest.approx(500, rel=0.02)
    assert without == pytest.approx(before, rel=0.02)
    assert back == pytest.approx(500, rel=0.05)  # "b" was away for 12 s


def test_a_worker_that_joins_late_counts_with_its_whole_budget() -> None:
    run = Workers(2_000, {"a": 10.0, "b": 10.0})
    run.run(100)
    run.rates["c"] = 10.0
    assert run.run(2) == pytest.approx(198, rel=0.02)


def test_a_worker_that_hangs_counts_as_before_until_it_is_gone() -> None:
    run = Workers(4_000, {"a": 10.0, "b": 10.0})
    run.run(100)
    run.rates["b"] = 0.0
    found = [run.run(1) for _ in range(120)]
    assert all(left is not None and 300 / 1.35 < left < 300 * 1.35 for left in found)
    del run.rates["b"]
    assert run.run(1) == pytest.approx(179, rel=0.02)


def test_without_a_budget_or_commits_there_is_no_estimate() -> None:
    time_left = TimeLeft()
    time_left.update(10.0, 100, None, ())
    time_left.update(20.0, 200, None, ())
    assert time_left.seconds is None
    time_left = TimeLeft()
    for now in range(100):
        time_left.update(float(now), 0, 50, [WorkerProgress("a", 0, 10)])
    assert time_left.seconds is None


def test_a_track_of_a_long_run_still_covers_half_of_it() -> None:
    track = Track()
    for tick in range(100_000):
        track.observe(TICK * tick, tick)
    assert track.seconds > 0.9 * TICK * 100_000
    assert track.rate(TICK * 100_000) == pytest.approx(1 / TICK, rel=1e-3)
