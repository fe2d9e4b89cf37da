"""`gemps evaluate --follow` beside a real run, and the evaluator of `gemps train`."""

import contextlib
import json
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from gem_cli.errors import INTERRUPTED, USAGE
from gem_worker import evaluate_checkpoint
from gem_worker.settings import WorkerSettings

from tests.cli.processes import (
    PATIENCE,
    children,
    command,
    gemps,
    gemps_here,
    json_lines,
    served,
    started,
    stop,
    wait_for,
)

OPEN_END = ["--commits", "100000000", "--eta", "0.1"]


def told(log: Path, event: str) -> list[dict[str, Any]]:
    lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    return [line for line in json_lines("\n".join(lines)) if line["event"] == event]


@pytest.mark.long
def test_a_finished_run_is_evaluated_once_and_that_is_the_end(tmp_path: Path) -> None:
    best = tmp_path / "best"
    with served(tmp_path, "--commits", "40", "--eta", "0.1") as (address, server):
        assert gemps("work", "--server", address).returncode == 0
        done = gemps("evaluate", "--server", address, "--follow", "--keep-best", str(best), "--json")
        assert done.returncode == 0, done.stderr
        assert stop(server) == 0
    evaluated, ended = json_lines(done.stdout)
    assert (evaluated["event"], ended["event"]) == ("evaluated", "ended")
    assert evaluated["best"]
    assert evaluated["version"]["clock"] == 41
    assert ended["best"]["accuracy"] == evaluated["accuracy"]
    assert evaluate_checkpoint(best, WorkerSettings(device="cpu")).accuracy == evaluated["accuracy"]


def test_ctrl_c_while_there_is_no_server_ends_it_cleanly(tmp_path: Path) -> None:
    log = tmp_path / "evaluator.log"
    with started(command("evaluate", "--server", "127.0.0.1:9", "--follow", "--json"), log) as evaluator:
        wait_for(lambda: bool(told(log, "waiting-for-server")), evaluator, log)
        evaluator.send_signal(signal.SIGINT)
        assert evaluator.wait(PATIENCE) == INTERRUPTED
    assert len(log.read_text(encoding="utf-8").splitlines()) == 1


def test_options_of_a_follower_without_follow_are_refused() -> None:
    done = gemps_here("evaluate", "--server", "127.0.0.1:9", "--stop-at-accuracy", "0.9")
    assert done.returncode == USAGE
    assert "add --follow" in done.stderr


def test_a_file_cannot_be_followed(tmp_path: Path) -> None:
    assert gemps_here("evaluate", str(tmp_path / "model.safetensors"), "--follow").returncode == USAGE


@pytest.mark.long
def test_a_training_ends_at_its_target_with_the_curve_in_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    stop_early = ["--commits", "100000000", "--stop-at-accuracy", "0.9", "--evaluation-interval", "0.5"]
    done = gemps("train", "--workers", "1", "--eta", "0.1", *stop_early, "--run-dir", str(folder))
    assert done.returncode == 0, done.stderr
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["exit_codes"] == {"server": 0, "worker-0": 0, "evaluator": 0}
    metrics = json_lines((folder / "metrics.jsonl").read_text(encoding="utf-8"))
    seen = [line["last_evaluation"] for line in metrics if "last_evaluation" in line]
    assert seen[-1]["version"]["clock"] == summary["version"]
    assert seen[-1]["accuracy"] == summary["accuracy"]
    history = json.loads((folder / "history.json").read_text(encoding="utf-8"))
    assert history["evaluations"][-1] == seen[-1]
    assert max(one["accuracy"] for one in history["evaluations"]) >= 0.9
    kept = evaluate_checkpoint(folder / "best", WorkerSettings(device="cpu"))
    assert kept.accuracy == max(one["accuracy"] for one in history["evaluations"])
    assert "--stop-at-accuracy 0.9 was reached, which ended the run: best accuracy 0." in done.stdout
    assert f"kept in {folder / 'best'}" in done.stdout
    assert (summary["best_accuracy"], summary["reached_stop_at_accuracy"]) == (kept.accuracy, True)


@pytest.mark.long
def test_an_evaluator_that_fails_is_told_and_does_not_fail_the_training(tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "run"
    budget = ["--workers", "1", "--steps", "30", "--evaluation-interval", "0.5"]
    with started(command("train", *budget, "--run-dir", str(folder), "--json"), log) as process:
        wait_for(lambda: bool(evaluators(process.pid)), process, log)
        evaluators(process.pid)[0].kill()
        assert process.wait(PATIENCE) == 0, log.read_text(encoding="utf-8")
    assert len(told(log, "evaluator_failed")) == 1
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["exit_codes"] == {"server": 0, "worker-0": 0, "evaluator": -signal.SIGKILL}
    assert summary["commits"] == 30


def evaluators(pid: int) -> list[psutil.Process]:
    """The evaluator among the children of `gemps train`, once it is more than a copy of that."""
    found = []
    for one in children(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "--follow" in one.cmdline():
                found.append(one)
    return found


def test_a_script_of_ones_own_cannot_be_evaluated(tmp_path: Path) -> None:
    done = gemps_here(
        "train", "--stop-at-accuracy", "0.9", "--run-dir", str(tmp_path / "run"), "--", "python", "-c", "pass"
    )
    assert done.returncode == USAGE
    assert "Observer.report_evaluation" in done.stderr
    assert not (tmp_path / "run").exists()
