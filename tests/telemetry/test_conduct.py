"""Workers whose commits add nothing are noticed."""

from itertools import cycle, islice

import pytest
from gem_server.telemetry.conduct import COMPARED, Conduct, Habit
from gem_server.telemetry.recent_commits import HABIT, REMEMBERED, RecentCommits


def commit(conduct: Conduct, number: int, *, is_zero: bool = False, is_loss_finite: bool | None = True) -> list[Habit]:
    conduct.committed((1, 100, number), is_zero=is_zero, is_loss_finite=is_loss_finite)
    return conduct.habits


@pytest.mark.parametrize("period", [1, 3, COMPARED])
def test_equal_deltas_again_and_again_are_a_habit_until_that_ends(period: int) -> None:
    conduct = Conduct()
    for number in islice(cycle(range(period)), 200):
        commit(conduct, number)
    assert conduct.habits == [Habit.SAME_DELTAS]
    for number in range(1000, 1000 + REMEMBERED):
        commit(conduct, number)
    assert not conduct.habits


def test_some_equal_deltas_and_deltas_of_zero_are_no_habit() -> None:
    conduct = Conduct()
    for number in range(200):
        assert not commit(conduct, number // 2 if number % 3 else number + 1000)
        assert not commit(conduct, -1, is_zero=True)


def test_losses_that_are_mostly_not_finite_are_told() -> None:
    conduct = Conduct()
    assert not any(commit(conduct, number, is_loss_finite=None) for number in range(REMEMBERED))
    told = [commit(conduct, 100 + number, is_loss_finite=False) for number in range(HABIT)]
    assert told == [*([[]] * (HABIT - 1)), [Habit.LOSSES_NOT_FINITE]]


def test_only_the_last_commits_are_remembered() -> None:
    recent = RecentCommits()
    for number in range(3 * REMEMBERED):
        recent.record(is_of_kind=number % 3 == 0)
    assert not recent.is_habit
    for _ in range(HABIT):
        recent.record(is_of_kind=True)
    assert recent.is_habit
    for _ in range(REMEMBERED - HABIT + 1):
        recent.record(is_of_kind=False)
    assert not recent.is_habit
    assert recent.bits < 1 << REMEMBERED
