"""When and how the log says that a run waits for workers: the decision alone, on the test's clock."""

import itertools

import pytest
from gem_server.lifecycle import NAMED_WORKERS, describe_waiting
from gem_server.waiting_notice import FIRST_SECONDS, LONGEST_SECONDS, WaitingNotice


def moments_of_notices(seconds: int) -> list[int]:
    notice = WaitingNotice()
    return [now for now in range(seconds) if notice.check(1e6 + now, waits=True) is not None]


def test_waiting_is_said_again_and_again_at_growing_intervals() -> None:
    first = int(FIRST_SECONDS)
    assert moments_of_notices(16 * first) == [first, 3 * first, 7 * first, 15 * first]


def test_the_intervals_stop_growing_so_that_a_day_of_waiting_is_not_silent() -> None:
    moments = moments_of_notices(24 * 3600)
    between = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert between == sorted(between)
    assert between[-1] == LONGEST_SECONDS
    assert len(moments) < 40


def test_it_says_for_how_long_the_run_has_waited_since_it_trained_last() -> None:
    notice = WaitingNotice()
    assert notice.check(0.0, waits=True) is None
    assert notice.check(FIRST_SECONDS, waits=True) == FIRST_SECONDS
    assert notice.check(FIRST_SECONDS + 1, waits=False) is None
    assert notice.check(1000.0, waits=True) is None
    assert notice.check(1000.0 + FIRST_SECONDS, waits=True) == FIRST_SECONDS


@pytest.mark.parametrize(
    ("started", "present", "wanted", "absent", "expected"),
    [
        (False, 1, 3, [], "the run waits for workers: joined 1 of 3, missing 2"),
        (
            False,
            1,
            3,
            ["b", "c"],
            "the run waits for workers: joined 1 of 3, missing 2 (earlier ones that are not there: b, c)",
        ),
        (False, 2, 2, [], "workers joined: 2; none has brought the first parameters yet"),
        (True, 0, 2, [], "no worker is joined, and the run waits for workers"),
    ],
)
def test_a_waiting_run_is_described_by_who_is_there_and_who_is_missing(
    started: bool, present: int, wanted: int, absent: list[str], expected: str
) -> None:
    assert describe_waiting(started=started, present=present, wanted=wanted, absent=absent) == expected


def test_a_thousand_missing_workers_are_not_all_named() -> None:
    absent = [f"worker-{index}" for index in range(1000)]
    text = describe_waiting(started=True, present=0, wanted=1, absent=absent)
    assert text.endswith(f"worker-{NAMED_WORKERS - 1}, {1000 - NAMED_WORKERS} more)")
