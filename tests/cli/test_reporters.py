"""What is told without a terminal: a line where something changed, and none that repeats the one before."""

from typing import Any

import pytest
from gem_cli.training import reporters
from gem_cli.training.reporters import PlainReporter

from tests.cli.test_status_view import changed


def waiting(workers: int) -> dict[str, Any]:
    live = [{"name": f"w{rank}", "state": "WORKER_STATE_JOINED"} for rank in range(workers)]
    return changed(run_state="RUN_STATE_WAITING", workers=live)


def test_a_run_that_waits_says_so_when_something_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reporters, "PLAIN_INTERVAL", 0.0)  # a line is always due
    reporter = PlainReporter()
    for workers in (0, 0, 1, 1, 1):
        reporter.status(waiting(workers))
    reporter.close()
    assert capsys.readouterr().out.splitlines() == [
        "waiting: 0 of 2 workers have joined, 2 missing, version 241",
        "waiting: 1 of 2 workers have joined, 1 missing, version 241",
    ]


def test_the_last_report_is_told_even_if_no_line_was_due(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = PlainReporter()
    for commits in (1, 2, 3):
        reporter.status(changed(run_seconds=float(commits)))
    reporter.close()
    reporter.close()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["1.0", "3.0"]
