"""When a server that ends with its run may end: the decision alone, on a clock of the test's own."""

import pytest
from gem_server.lifecycle import reason_to_exit
from gem_server.service.scrapes import Scrapes

FINISHED_AT = 1000.0


def reason(
    seconds: float, *, joined: float | None = -10.0, here: int = 0, linger: float = 0.0, scrape_due: bool = False
) -> str | None:
    """`seconds` after the end of the run; `joined`: when the newest worker did, counted in the same way."""
    return reason_to_exit(
        FINISHED_AT + seconds,
        finished_at=FINISHED_AT,
        last_join=None if joined is None else FINISHED_AT + joined,
        sessions=here,
        watchers=0,
        is_scrape_due=scrape_due,
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
            now,
            finished_at=FINISHED_AT,
            last_join=0.0,
            sessions=0,
            watchers=1,
            is_scrape_due=False,
            linger=0.0,
            grace=30.0,
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


def test_monitoring_is_owed_one_more_scrape_but_not_for_ever() -> None:
    assert reason(29.9, scrape_due=True) is None
    assert reason(30.0, scrape_due=True) == "all workers have left"


class Monitoring:
    """Who scrapes a run that ends at FINISHED_AT; times are seconds after that."""

    def __init__(self) -> None:
        self._now = FINISHED_AT
        self._scrapes = Scrapes(lambda: self._now)

    def scrape(self, seconds: float, *, answered: float = 0.1) -> None:
        self._now = FINISHED_AT + seconds
        started = self._scrapes.start()
        self._now += answered
        self._scrapes.answered(started)

    def is_due(self, seconds: float) -> bool:
        self._now = FINISHED_AT + seconds
        return self._scrapes.is_due(FINISHED_AT)


def test_a_scrape_is_due_if_there_were_two_before_until_it_has_come() -> None:
    monitoring = Monitoring()
    assert not monitoring.is_due(0)
    monitoring.scrape(-15)
    assert not monitoring.is_due(0), "somebody had a look"
    monitoring.scrape(-5)
    assert monitoring.is_due(0)
    assert monitoring.is_due(5)
    monitoring.scrape(5)
    assert not monitoring.is_due(5.2)


def test_a_scrape_that_began_before_the_end_does_not_tell_of_it() -> None:
    monitoring = Monitoring()
    monitoring.scrape(-10.1)
    monitoring.scrape(-0.1, answered=0.2)
    assert monitoring.is_due(0.2)


def test_a_scrape_that_does_not_come_is_not_waited_for() -> None:
    monitoring = Monitoring()
    monitoring.scrape(-15)
    monitoring.scrape(-5)
    assert monitoring.is_due(14.9)
    assert not monitoring.is_due(15.1)


def test_visits_of_people_are_no_monitoring() -> None:
    monitoring = Monitoring()
    monitoring.scrape(-600)
    monitoring.scrape(-5)
    assert not monitoring.is_due(0)
