"""Wrong lines are found; without that, test_pages would show nothing."""

import pytest

from tests.docs.command_line import objection, refused_keys


@pytest.mark.parametrize(
    "line", ["serve --eta 0.1 --commits 5000", "work server:50051", "status --watch", "train --resume --run-dir r"]
)
def test_lines_that_work_meet_no_objection(line: str) -> None:
    assert objection(line.split(), {"GEMPS_SEED": "3"}) == ""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sreve", "no command"),
        ("serve --etta 0.1", "--etta"),
        ("serve --eta fast", "eta"),
        ("serve --rule sum", "rule"),
        ("serve --bind 0.0.0.0:50051", "insecure"),
        ("status here there", "there"),
        ("--verbose", "--verbose"),
    ],
)
def test_lines_that_would_fail_are_told(line: str, said: str) -> None:
    assert said in objection(line.split(), {})


def test_variables_and_keys_that_nothing_reads_are_told() -> None:
    assert "GEMPS_COMITS" in objection(["serve"], {"GEMPS_COMITS": "5"})
    assert "commits" in objection([], {"GEMPS_COMMITS": "many"})
    assert "comits" in refused_keys({"comits": 5})
    assert "commits" in refused_keys({"commits": "many"})
