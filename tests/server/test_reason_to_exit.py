"""When a server that ends with its run may end: the decision alone, on a clock of the test's own."""

import pytest
from gem_server.lifecycle import reason_to_exit

FINISHED_AT = 1000.0


def reason(seconds: float, *, joined: float | None = -10.0, here: int = 0, linger: float = 0.0) -> str | None:
    """`seconds` after the end of the run; `joined`: when the newest worker did, counted in the same way."""
    return reason_to_exit(
        FINISHED_AT + seconds,
        finished_at=FINISHED_AT,
        last_join=None if joined is None else FINISHED_AT + joined,
        sessions=here,
        watchers=0,
        linger=linger,
        grace=30.0,
    )


def test_a_run_whose_workers_have_left_ends_at_once() -> None:
    assert reason(0.0) == "all workers have left"


def test_workers_that_have_not_left_are_waited_for_but_not_for_ever() -> None:
    assert reason(29.9, here=1) is None
    assert reason(30.0, here=1) == "1 workers and 0 watchers have not left for 30 s"


def test_who_watches_is_owed_the_last_report_but_not_for_ever() -> None:
    def watched(seconds: float) -> str | None:
        now = FINISHED_AT + seconds
        return reason_to_exit(
            now, finished_at=FINISHED_AT, last_join=0.0, sessions=0, watchers=1, linger=0.0, grace=30.0
        )

    assert watched(29.9) is None
    assert watched(30.0) is not None


def test_a_run_that_was_finished_before_this_process_waits_for_its_workers_first() -> None:
    assert reason(0.0, joined=None) is None
    assert reason(29.9, joined=None) is None
    assert reason(30.0, joined=None) == "no worker has come for 30 s"
    assert reason(10.0, joined=5.0, here=1) is None
    assert reason(10.0, joined=5.0) == "all workers have left"


@pytest.mark.parametrize("seconds", [0.0, 9.0, 49.9])
def test_workers_that_come_late_have_linger_since_the_newest_join(seconds: float) -> None:
    assert reason(seconds, linger=60.0) is None
    assert reason(50.0, linger=60.0) == "all workers have left"


def test_each_late_worker_renews_linger_up_to_its_length_after_the_end() -> None:
    assert reason(59.0, joined=55.0, linger=60.0) is None
    assert reason(60.0, joined=55.0, linger=60.0) is not None


def test_linger_that_is_longer_than_grace_is_the_patience_with_all() -> None:
    assert reason(59.9, joined=None, linger=60.0) is None
    assert reason(59.9, here=1, linger=60.0) is None
    assert reason(60.0, joined=None, linger=60.0) is not None
