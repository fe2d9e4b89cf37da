"""Curves of a run in bounded memory."""

from dataclasses import fields

import pytest
from gem_server.telemetry.history import History, Interval

from gem_core import Statistics

STATISTICS = Statistics(
    mean_pi=0.5,
    blocked_fraction=0.25,
    clamped_fraction=0.125,
    proxy_norm=1.0,
    drift_norm=2.0,
    delta_norm=3.0,
    update_norm=4.0,
)


def fill(history: History, seconds: int, commits: int) -> None:
    """So many commits in each of so many seconds."""

    def note_clock(interval: Interval) -> None:
        interval.clock = int(commits * interval.ends)

    for second in range(seconds):
        for index in range(commits):
            history.current.record([STATISTICS], [index], [0.01], [2.0], [1])
        assert history.is_over(float(second + 1)) == (second + 1 >= history.current.begins + history.seconds)
        if history.is_over(float(second + 1)):
            history.close(float(second + 1), note_clock)


def test_an_interval_is_closed_when_its_time_is_over() -> None:
    history = History()
    assert not history.is_over(0.5)
    assert history.is_over(1.25)
    history.close(1.25, lambda _: None)
    assert not history.is_over(2.0)
    assert [(one.begins, one.ends, one.commits) for one in history.intervals] == [(0.0, 1.25, 0)]


def test_when_there_are_too_many_each_two_become_one_and_nothing_is_lost() -> None:
    history = History(limit=8)
    fill(history, 100, 3)
    assert len(history.intervals) < 8
    assert history.seconds > 8
    assert history.joins > 3
    whole = [*history.intervals, history.current]
    assert sum(one.commits for one in whole) == 300
    assert sum(one.loss for one in whole) == pytest.approx(600)
    assert sum(one.staleness for one in whole) == 300
    assert all(one.staleness_max == 2 for one in history.intervals)
    assert [one.begins for one in history.intervals[1:]] == [one.ends for one in history.intervals[:-1]]
    assert all(one.clock == 3 * one.ends for one in history.intervals)


def test_every_field_is_either_summed_or_as_it_was_at_the_end() -> None:
    earlier, later = Interval(), Interval()
    for at, field in enumerate(fields(Interval)):
        setattr(earlier, field.name, at + 1)
        setattr(later, field.name, 100 * (at + 1))
    joined = earlier.followed_by(later)
    for at, field in enumerate(fields(Interval)):
        assert getattr(joined, field.name) in (at + 1, 100 * (at + 1), 101 * (at + 1)), field.name
    assert joined.begins == earlier.begins
    assert joined.ends == later.ends
    assert joined.commits == earlier.commits + later.commits


@pytest.mark.parametrize("limit", [0, 1, 7])
def test_a_limit_that_cannot_be_halved_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="even"):
        History(limit)
