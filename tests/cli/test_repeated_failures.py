"""Errors that another start would not mend, and those that it may."""

import pytest
from gem_cli.training.repeated_failures import RepeatedFailures, failure_in


def log_of(error: str, line: int = 12, before: str = "") -> str:
    frames = f'  File "train.py", line {line}, in <module>\n    step(model)\n    ^^^^^^^^^^^\n'
    return f"12:00:01 joined\n{before}Traceback (most recent call last):\n{frames}{error}\n"


def test_the_same_error_at_the_same_place_is_one_whatever_it_says() -> None:
    failures = RepeatedFailures()
    assert failures.add("w", log_of("TypeError: no 0x7f01"), 40) == ""
    assert failures.add("w", log_of("TypeError: no 0x7f02"), 40) == "TypeError: no 0x7f02"


@pytest.mark.parametrize(
    ("second", "commits"),
    [
        (log_of("TypeError: no"), 41),
        (log_of("ValueError: no"), 40),
        (log_of("TypeError: no", line=13), 40),
        ("12:00:01 joined\nsegmentation fault", 40),
    ],
    ids=["a commit in between", "another error", "another place", "no traceback"],
)
def test_another_failure_is_worth_another_attempt(second: str, commits: int) -> None:
    failures = RepeatedFailures()
    failures.add("w", log_of("TypeError: no"), 40)
    assert failures.add("w", second, commits) == ""


def test_workers_are_told_apart() -> None:
    failures = RepeatedFailures()
    failures.add("w", log_of("TypeError: no"), 0)
    assert failures.add("x", log_of("TypeError: no"), 0) == ""


def test_a_lost_server_is_worth_every_attempt() -> None:
    failures = RepeatedFailures()
    lost = log_of("gem_worker.client.errors.ServerUnavailableError: no answer")
    assert [failures.add("w", lost, 0) for _ in range(3)] == ["", "", ""]


def test_of_an_error_during_the_handling_of_another_the_last_one_counts() -> None:
    found = failure_in(log_of("RuntimeError: second", line=20, before=log_of("KeyError: first")))
    assert found is not None
    assert (found.kind, found.frames) == ("RuntimeError", ('  File "train.py", line 20, in <module>',))


@pytest.mark.parametrize("log", ["", "no traceback", 'Traceback (most recent call last):\n  File "cut off'])
def test_a_log_without_a_whole_traceback_has_no_failure(log: str) -> None:
    assert failure_in(log) is None
