"""metrics.jsonl: a course of the run in a file that never exceeds its limit."""

import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from gem_cli.training.metrics_file import MetricsFile, commits_of, elapsed, read_lines

from tests.cli.test_status_view import WORKER, changed


def report(seconds: float, commits: int, process: int = 7, workers: int = 1) -> dict[str, Any]:
    """A report of a server process that has trained for so many seconds."""
    seen = {**WORKER, "seconds_since_last_call": seconds % 1}
    return changed(
        version={"incarnation": process, "clock": commits + 1},
        run_seconds=seconds,
        uptime_seconds=seconds + 1,
        commits=commits,
        commits_of_process=commits,
        workers=[{**copy.deepcopy(seen), "name": f"worker-{rank}"} for rank in range(workers)],
    )


@pytest.mark.parametrize("workers", [1, 8])
def test_a_run_of_any_length_has_a_file_within_the_limit_with_even_steps(tmp_path: Path, workers: int) -> None:
    path, limit = tmp_path / "metrics.jsonl", 100_000
    file = MetricsFile(path, interval=1.0, max_bytes=limit)
    largest = 0
    for second in range(1_000):
        file.offer(report(float(second), 10 * second, workers=workers), now=float(second))
        largest = max(largest, path.stat().st_size)
    assert limit / 3 < largest <= limit
    lines = read_lines(path)
    assert lines[0]["run_seconds"] == 0
    steps = [later["run_seconds"] - earlier["run_seconds"] for earlier, later in pairwise(lines)]
    assert max(steps) <= 2 * min(steps)
    assert file.write_newest() is not None or lines[-1]["run_seconds"] == 999
    assert read_lines(path)[-1]["run_seconds"] == 999


def test_reports_come_no_faster_than_the_interval_and_the_newest_is_kept_in_the_end(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl", interval=1.0)
    added = [file.offer(report(at, int(10 * at)), now=100 + at) for at in (0.0, 0.5, 0.9, 1.0, 1.5, 2.1, 2.4)]
    assert added == [True, False, False, True, False, True, False]
    newest = file.write_newest()
    assert newest is not None
    assert newest["run_seconds"] == 2.4
    assert file.write_newest() is None
    assert [line["run_seconds"] for line in read_lines(tmp_path / "metrics.jsonl")] == [0.0, 1.0, 2.1, 2.4]
    assert all("time" in line for line in read_lines(tmp_path / "metrics.jsonl"))


def test_where_nothing_changes_there_is_no_line(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl", interval=0.0)
    assert file.offer(report(1.0, 10), now=1.0)
    assert not any(file.offer(report(1.0 + second, 10), now=float(second)) for second in range(2, 1_000))
    assert file.write_newest() is None
    silent = report(2_000.0, 10)
    silent["workers"][0]["condition"] = "WORKER_CONDITION_SILENT"
    assert file.offer(silent, now=2_000.0)
    assert file.offer(report(2_001.0, 11), now=2_001.0)


def test_a_line_that_alone_exceeds_the_limit_is_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path, interval=0.0, max_bytes=100)
    for second in range(5):
        file.offer(report(float(second), second), now=float(second))
    assert [line["commits"] for line in read_lines(path)][-1] == 4
    assert len(read_lines(path)) == 2


def test_a_run_that_is_resumed_goes_on_in_the_same_file(tmp_path: Path) -> None:
    """And a last line that was cut off, as by a kill, is no part of it."""
    path = tmp_path / "metrics.jsonl"
    first = MetricsFile(path, interval=0.5)
    for second in range(0, 100, 10):
        first.offer(report(float(second), second), now=float(second))
    with path.open("a", encoding="utf-8") as file:
        file.write('{"commits": 9')
    assert read_lines(path)[-1]["commits"] == 90
    second_file = MetricsFile(path, interval=0.5)
    for second in range(50):
        second_file.offer(report(float(second), 90 + second, process=8), now=float(second))
    second_file.write_newest()
    lines = read_lines(path)
    assert [line["commits"] for line in lines] == [*range(0, 100, 10), 90, 99, 108, 117, 126, 135, 139]
    assert elapsed(lines)[9:12] == [90.0, 90.0, 99.0]
    assert elapsed(lines)[-1] == 139.0


def test_commits_before_the_first_report_are_not_of_its_time() -> None:
    """As where a server went on from another one, of which there is no file."""
    lines = [report(1.0, 510) | {"commits_of_process": 10}, report(5.0, 550) | {"commits_of_process": 50}]
    assert commits_of(lines) == 50
    assert commits_of([report(1.0, 10), report(5.0, 50)]) == 50


def test_without_a_file_there_is_no_line(tmp_path: Path) -> None:
    assert read_lines(tmp_path / "none") == []
