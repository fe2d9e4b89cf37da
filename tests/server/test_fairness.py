import pytest
from gem_server.state.fairness import FairnessWindow, jain_index
from gem_server.state.workers import Worker
from gem_server.telemetry.rate_meter import RateMeter


@pytest.mark.parametrize(
    ("counts", "index"), [([], 1.0), ([0, 0], 1.0), ([5, 5, 5], 1.0), ([9, 0, 0], 1 / 3), ([1, 2, 3], 36 / 42)]
)
def test_jain_index(counts: list[int], index: float) -> None:
    assert jain_index(counts) == pytest.approx(index)


def test_commits_before_everybody_was_live_do_not_count() -> None:
    early, late = Worker("early", 0, commits=1000), Worker("late", 1)
    window = FairnessWindow()
    window.joined([early, late])
    early.commits += 10
    late.commits += 10
    assert window.index([early, late]) == 1.0


def test_index_stays_when_the_first_worker_goes() -> None:
    a, b = Worker("a", 0), Worker("b", 1)
    window = FairnessWindow()
    window.joined([a, b])
    a.commits, b.commits = 10, 5
    window.going([a, b])
    a.commits = 500
    assert window.index([a]) == jain_index([10, 5])


def test_rate_counts_the_last_seconds_only() -> None:
    meter = RateMeter()
    for tenth in range(100):
        meter.record(tenth / 10)
    assert meter.rate(10.0) == pytest.approx(10.0, rel=0.15)
    assert meter.rate(100.0) == 0.0


@pytest.mark.parametrize("events", [2, 3, 5, 50, 95, 100])
def test_rate_is_right_from_the_second_event_on(events: int) -> None:
    """While training is young the figure must not look as if it were slow."""
    meter = RateMeter()
    assert meter.rate(7.3) == 0.0
    for tenth in range(events):
        meter.record(7.3 + tenth / 10)
    assert meter.rate(7.3 + (events - 1) / 10) == pytest.approx(10.0, rel=0.02)


def test_one_event_has_no_rate() -> None:
    meter = RateMeter()
    meter.record(7.3)
    assert meter.rate(7.3) == meter.rate(7.5) == 0.0
