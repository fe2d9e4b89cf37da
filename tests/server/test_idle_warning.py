"""When the log warns of a run without workers: the decision alone, on the test's clock."""

import pytest
from gem_server.lifecycle import IDLE_SECONDS, IdleWarning

LONG = IDLE_SECONDS


def test_a_run_without_workers_is_told_after_a_while_and_once() -> None:
    warning = IdleWarning()
    moments = (1e6, 1e6 + LONG - 1, 1e6 + LONG, 1e6 + 5 * LONG)
    told = [warning.check(now, workers=0, finished=False) for now in moments]
    assert told == [None, None, f"no worker has been joined for {LONG:g} s: the run waits for workers", None]


@pytest.mark.parametrize(("workers", "finished"), [(1, False), (0, True)])
def test_the_while_begins_anew_when_a_worker_came_or_the_run_was_over(workers: int, finished: bool) -> None:
    warning = IdleWarning()
    warning.check(0.0, workers=0, finished=False)
    assert warning.check(LONG, workers=workers, finished=finished) is None
    told = [warning.check(now, workers=0, finished=False) for now in (LONG + 1, 2 * LONG, 2 * LONG + 1)]
    assert [text is not None for text in told] == [False, False, True]


def test_it_is_told_again_when_they_have_left_again() -> None:
    warning = IdleWarning()
    assert warning.check(0.0, workers=0, finished=False) is None
    assert warning.check(LONG, workers=0, finished=False) is not None
    assert warning.check(LONG + 1, workers=2, finished=False) is None
    assert warning.check(LONG + 2, workers=0, finished=False) is None
    assert warning.check(2 * LONG + 2, workers=0, finished=False) is not None
