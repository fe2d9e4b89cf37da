"""What is told without a terminal: a line where something changed, and none that repeats the one before."""

import io
from typing import Any

import pytest
from gem_cli.training import reporters
from gem_cli.training.reporters import LiveReporter, PlainReporter
from gem_server import waiting_notice
from rich.console import Console

from tests.cli.test_status_view import changed
from tests.waiting import eventually


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


def starting(commits: int) -> dict[str, Any]:
    live = [{"name": f"w{rank}", "state": "WORKER_STATE_JOINED"} for rank in range(2)]
    return changed(run_state="RUN_STATE_TRAINING", workers=live, commits=commits, commits_of_process=commits)


def test_waiting_for_the_first_commit_is_shown_until_it_comes(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = PlainReporter()
    for commits in (0, 0, 1):
        reporter.status(starting(commits))
    first, second = capsys.readouterr().out.splitlines()
    assert first == "waiting: 2 workers have joined, and the first commit has not come, version 241"
    assert "training" in second


def test_waiting_is_told_again_with_its_duration(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting_notice, "FIRST_SECONDS", 0.0)
    reporter = PlainReporter()
    reporter.status(waiting(1))
    assert "waiting: 1 of 2 workers have joined, 1 missing, version 241, for 0 s now" in capsys.readouterr().out


def test_the_rule_that_the_first_worker_has_decided_is_told_once_the_run_trains(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reporter = PlainReporter()
    decided = "rule gem by the first worker's AdamW (RMS-scaled gradients at a third of its rate, lr 0.001)"
    reporter.status(waiting(1) | {"rule": "rule auto: the first worker decides"})
    for commits in (1, 2):
        reporter.status(starting(commits) | {"rule": decided})
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "rule" in line] == [f"update rule: {decided.removeprefix('rule ')}"]


def test_a_live_view_shows_what_the_start_waits_for() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=30)
    reporter = LiveReporter(console)
    reporter.phase("server", "starting the server")
    reporter.status(waiting(1))
    reporter.close()
    assert isinstance(console.file, io.StringIO)
    written = console.file.getvalue()
    assert "starting the server (0 s)" in written
    assert "waiting: 1 of 2 workers have joined, 1 missing (0 s)" in written


def test_an_event_above_a_live_view_shows_its_brackets_and_leaves_the_tables_as_they_are() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=30)
    reporter = LiveReporter(console)
    output = console.file
    assert isinstance(output, io.StringIO)
    reporter.status(changed(run_seconds=1.0))
    eventually(lambda: "fairness" in output.getvalue())
    reporter.event("worker_failed", "worker-1 failed: [bold]")
    reporter.close()
    written = output.getvalue()
    assert "worker-1 failed: [bold]" in written
    assert "[dim]" not in written
