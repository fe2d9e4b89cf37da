"""What is made of a run when it has ended: figures of the whole run, and the plot."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from gem_cli.training import results
from gem_cli.training.metrics_file import MetricsFile, read_lines
from gem_cli.training.plot import draw, held_out_losses
from gem_cli.training.run_folder import RunFolder
from gem_cli.training.training_run import Outcome

from tests.cli.test_metrics_file import report
from tests.cli.test_status_view import MEANS

SETTINGS = {"server": {"seed": 3}}


def summary(path: Path, last: dict[str, Any] | None) -> dict[str, Any]:
    return results.summarize(Outcome(last_status=last), read_lines(path), started=datetime.now(UTC), settings=SETTINGS)


@pytest.mark.parametrize("state", ["TRAINING", "FINISHED"])
def test_figures_are_means_of_the_run_however_it_ended(tmp_path: Path, state: str) -> None:
    """Also where it was interrupted, or its last report came before its end."""
    last = report(4.0, 240) | {"run_state": f"RUN_STATE_{state}", "means": MEANS, "commits_per_second": 9.0}
    found = summary(tmp_path / "none", last)
    assert (found["staleness_mean"], found["mean_pi"], found["blocked_fraction"]) == (1.9, 2.08, 0.31)
    assert (found["commits_per_second"], found["training_seconds"]) == (60.0, 4.0)
    assert found["training_loss"] == 0.25


def test_the_summary_says_what_the_run_did_in_the_words_of_the_server(tmp_path: Path) -> None:
    told = "rule auto: gem, direction auto, eta 0.002"
    assert summary(tmp_path / "none", report(4.0, 240) | {"rule": told})["rule"] == told


def test_time_and_speed_are_over_all_server_processes(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    for at in (0.0, 5.0, 10.0):
        file.append(report(at, int(100 * at)))
    for at in (0.0, 5.0):
        file.append(report(at, 1000 + int(40 * at), process=8) | {"commits_of_process": int(40 * at)})
    last = report(10.0, 1400, process=8) | {"commits_of_process": 400}
    found = summary(path, last)
    assert (found["commits"], found["training_seconds"], found["commits_per_second"]) == (1400, 20.0, 70.0)


def test_a_run_without_a_report_has_no_figures(tmp_path: Path) -> None:
    found = summary(tmp_path / "none", None)
    assert (found["commits"], found["training_seconds"], found["commits_per_second"]) == (0, 0.0, None)
    assert found["staleness_mean"] is found["mean_pi"] is found["blocked_fraction"] is None


def evaluated(seconds: float, clock: int, loss: float, process: int = 7, at: float | None = None) -> dict[str, Any]:
    """A report that tells of an evaluation, which was of the same moment or of an earlier one."""
    seen = {"version": {"clock": clock}, "loss": loss, "accuracy": 0.5, "evaluator": "e"}
    return report(seconds, 10 * int(seconds), process) | {"last_evaluation": {**seen, "run_seconds": at or seconds}}


def test_held_out_losses_are_those_of_all_evaluations_in_the_order_of_time() -> None:
    lines = [
        report(1.0, 10),
        evaluated(2.0, 11, 2.0, at=1.5),
        evaluated(3.0, 11, 2.0, at=1.5),
        evaluated(4.0, 31, 1.0),
        report(1.0, 10, process=8),
        evaluated(3.0, 31, 0.5, process=8),  # the same version again, after a restart
    ]
    assert held_out_losses(lines) == [(1.5, 2.0), (4.0, 1.0), (7.0, 0.5)]
    assert held_out_losses(lines[:1]) == []


def test_the_plot_shows_held_out_loss_beside_the_training_loss(tmp_path: Path) -> None:
    """Pixels of its colour are there if, and only if, something was evaluated."""
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    def has_orange(name: str, lines: list[dict[str, Any]], test_loss: float | None) -> bool:
        draw(lines, "a run", tmp_path / name, test_loss=test_loss)
        red, green, blue, _ = imread(tmp_path / name).transpose(2, 0, 1)
        return bool(((red > 0.9) & (abs(green - 0.467) < 0.02) & (blue < 0.22)).any())

    plain = [report(float(at), 10 * at) for at in range(1, 6)]
    assert not has_orange("plain.png", plain, None)
    assert has_orange("tested.png", plain, 0.5)
    assert has_orange("evaluated.png", [*plain, evaluated(6.0, 51, 0.4), evaluated(7.0, 61, 0.3)], None)


def test_what_is_not_a_number_is_null_in_the_history(tmp_path: Path) -> None:
    """JSON has no NaN, and other programs may read the file."""
    folder = RunFolder(tmp_path)
    folder.write_history({"tensors": {"columns": [{"mean_pi": [1.0, float("nan")]}]}})
    kept = json.loads(folder.history.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert kept["tensors"]["columns"][0]["mean_pi"] == [1.0, None]
