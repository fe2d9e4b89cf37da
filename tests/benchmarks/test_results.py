from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.harness import report
from benchmarks.harness.plan import Skipped
from benchmarks.harness.results import (
    Results,
    Spread,
    gigabytes,
    jain,
    jain_index,
    rate,
    server_cpu,
    step_milliseconds,
    workers_cpu,
)
from benchmarks.harness.run import Worker, quantiles
from benchmarks.peers.interface import Case
from tests.benchmarks.samples import MIDDLE, results, run


def test_figures_of_a_run() -> None:
    one = run("gemps-float32", 50.0)
    assert rate(one) == 50.0
    assert gigabytes(one) == pytest.approx(50 * 4 * 4_194_304 / 1e9)
    assert server_cpu(one) == pytest.approx(5.0)
    assert workers_cpu(one) == pytest.approx(10.0)
    assert step_milliseconds(one, 50) == pytest.approx(80.0)
    assert jain(one) == pytest.approx(1.0)


def test_jains_index() -> None:
    assert jain_index([1, 1, 1, 1]) == 1.0
    assert jain_index([1, 0, 0, 0]) == 0.25
    with pytest.raises(ValueError, match="no commits"):
        jain_index([0, 0])


def test_ratios_are_taken_round_by_round() -> None:
    found = results(
        run("gemps-float32", 10, 0), run("torch-rpc-tcp", 20, 0),
        run("gemps-float32", 90, 1), run("torch-rpc-tcp", 30, 1),
        run("gemps-float32", 40, 2), run("torch-rpc-tcp", 40, 2),
    )  # fmt: skip
    assert found.ratio("gemps-float32", MIDDLE, "torch-rpc-tcp") == Spread(1.0, 0.5, 3.0)


def test_rounds_that_one_of_two_failed_have_no_ratio() -> None:
    found = results(
        run("gemps-float32", 10, 0), run("torch-rpc-tcp", 20, 0, error="killed"),
        run("gemps-float32", 90, 1), run("torch-rpc-tcp", 30, 1),
    )  # fmt: skip
    assert found.ratio("gemps-float32", MIDDLE, "torch-rpc-tcp") == Spread(3.0, 3.0, 3.0)
    assert found.errors("torch-rpc-tcp", MIDDLE) == ["killed"]
    assert found.ratio("gemps-float32", MIDDLE, "ray-actor") is None


def test_ratios_between_cases() -> None:
    many = Case(4_194_304, 32)
    found = results(run("gemps-float32", 20), run("gemps-float32", 19, case=many))
    assert found.ratio("gemps-float32", many, "gemps-float32", MIDDLE) == Spread(0.95, 0.95, 0.95)


def test_the_best_peer_completed_every_round_and_is_neither_gemps_nor_a_limit() -> None:
    found = results(
        run("gemps-float32", 100), run("memory-copy", 900), run("torch-rpc-tcp", 30),
        run("torch-gloo-paper", 10), run("ray-actor", 50), run("ray-actor", 0, 1, error="killed"),
    )  # fmt: skip
    assert found.best_peer(MIDDLE) == "torch-rpc-tcp"
    assert results().best_peer(MIDDLE) is None


def test_a_file_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    found = results(run("gemps-float32", 10), run("ray-actor", 0, error="killed"))
    found.skipped.append(Skipped("flower-transfer", 2048, 4, "not installed"))
    found.save(tmp_path / "deep" / "bench.json")
    assert Results.load(tmp_path / "deep" / "bench.json") == found
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["bench.json"]


@pytest.mark.parametrize("text", ["", "{}", '{"format": 2}', '{"format": 1, "machine": {}}', "[]"])
def test_other_files_are_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"other\.json is no file of `make bench`"):
        Results.load(path)


def test_steps_under_way_at_the_ends_count_by_their_part() -> None:
    worker = Worker([2.0, 2.0, 2.0], began=10.0)
    assert worker.commits_between(10.0, 16.0) == 3.0
    assert worker.commits_between(10.0, 15.0) == 2.5
    assert worker.commits_between(11.0, 13.0) == 1.0
    assert worker.commits_between(20.0, 21.0) == 0.0


def test_quantiles_are_values_that_were_found() -> None:
    assert quantiles([]) == []
    found = quantiles([float(value) for value in range(201)])
    assert (found[0], found[50], found[99], found[100]) == (0.0, 100.0, 198.0, 200.0)
    assert quantiles([3.0]) == [3.0] * 101


def test_the_tables_name_failures_and_what_was_not_run() -> None:
    found = results(run("gemps-float32", 12.5), run("ray-actor", 0, error="its store is full"))
    found.skipped.append(Skipped("flower-transfer", 2048, 4, "not installed"))
    console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115
    report.show(found, console)
    text = console.export_text()
    assert "12.5 (12.5..12.5)" in text
    assert "ray-actor failed in a round: its store is full" in text
    assert "not run: flower-transfer (P = 2,048, 4 workers): not installed" in text
