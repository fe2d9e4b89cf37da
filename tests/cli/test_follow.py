"""`gemps evaluate --follow` beside a real run, and the evaluator of `gemps train`."""

import json
import signal
from pathlib import Path
from typing import Any

from gem_cli.errors import FAILED, INTERRUPTED, USAGE
from gem_worker import evaluate_checkpoint
from gem_worker.settings import WorkerSettings

from tests.cli.processes import PATIENCE, children, command, gemps, json_lines, served, started, stop, wait_for

OPEN_END = ["--commits", "100000000", "--eta", "0.1"]


def following(address: str, *arguments: str) -> list[str]:
    return command("evaluate", "--server", address, "--follow", "--evaluation-interval", "0.5", *arguments)


def told(log: Path, event: str) -> list[dict[str, Any]]:
    lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    return [line for line in json_lines("\n".join(lines)) if line["event"] == event]


def test_the_run_ends_at_the_target_and_the_best_parameters_are_kept(tmp_path: Path) -> None:
    log, best = tmp_path / "evaluator.log", tmp_path / "best"
    with served(tmp_path, *OPEN_END) as (address, server):
        follow = following(address, "--stop-at-accuracy", "0.9", "--keep-best", str(best), "--json")
        with started(follow, log) as evaluator:
            assert gemps("work", "--server", address).returncode == 0
            assert evaluator.wait(PATIENCE) == 0, log.read_text(encoding="utf-8")
        status = json_lines(gemps("status", address, "--json").stdout)[0]
        assert stop(server) == 0
    evaluations = told(log, "evaluated")
    clocks = [one["version"]["clock"] for one in evaluations]
    assert clocks == sorted(set(clocks))
    assert [one["best"] for one in evaluations] == [
        one["accuracy"] > max([-1.0, *(before["accuracy"] for before in evaluations[:number])])
        for number, one in enumerate(evaluations)
    ]
    assert len(told(log, "stopped")) == 1
    # The last version of the run was evaluated, and the server knows.
    assert status["run_state"] == "RUN_STATE_FINISHED"
    assert clocks[-1] == status["version"]["clock"] == status["last_evaluation"]["version"]["clock"]
    top = max(evaluations, key=lambda one: one["accuracy"])
    assert status["best_evaluation"]["accuracy"] == top["accuracy"] >= 0.9
    kept = json.loads((best / "best.json").read_text(encoding="utf-8"))
    assert (kept["accuracy"], kept["loss"], kept["version"]) == (top["accuracy"], top["loss"], top["version"])
    assert evaluate_checkpoint(best, WorkerSettings(device="cpu")).accuracy == top["accuracy"]
    assert sorted(path.name for path in best.iterdir()) == ["best.json", "model.safetensors"]


def test_a_server_that_ends_with_its_run_waits_for_the_last_evaluation(tmp_path: Path) -> None:
    log = tmp_path / "evaluator.log"
    with served(tmp_path, "--steps", "20", "--min-workers", "2", "--exit-when-finished") as (address, server):
        # So seldom that nothing but the first version is due before the end.
        seldom = command("evaluate", "--server", address, "--follow", "--evaluation-interval", "1000", "--json")
        with (
            started(seldom, log) as evaluator,
            started(command("work", "--server", address, "--worker-name", "first"), tmp_path / "first.log") as first,
        ):
            wait_for(lambda: bool(told(log, "evaluated")), evaluator, log)
            assert gemps("work", "--server", address, "--worker-name", "second").returncode == 0
            assert first.wait(PATIENCE) == 0
            assert evaluator.wait(PATIENCE) == 0, log.read_text(encoding="utf-8")
        assert server.wait(PATIENCE) == 0
    assert [one["version"]["clock"] for one in told(log, "evaluated")] == [1, 41]


def test_it_waits_for_a_server_that_comes_later_and_for_one_that_is_restarted(tmp_path: Path) -> None:
    log, state = tmp_path / "evaluator.log", tmp_path / "state"
    with served(tmp_path) as (address, server):
        stop(server)  # now the port is free, and known
    durable = [*OPEN_END, "--bind", address, "--data-dir", str(state), "--resume"]
    with started(following(address, "--json"), log) as evaluator:
        wait_for(lambda: bool(told(log, "waiting-for-server")), evaluator, log)
        with (
            served(tmp_path, *durable) as (_, server),
            started(command("work", address), tmp_path / "worker.log") as worker,
        ):
            wait_for(lambda: len(told(log, "evaluated")) >= 2, evaluator, log)
            assert stop(server) == 0
            wait_for(lambda: bool(told(log, "connection-lost")), evaluator, log)
            before = len(told(log, "evaluated"))
            with served(tmp_path, *durable):
                wait_for(lambda: len(told(log, "evaluated")) >= before + 2, evaluator, log)
                assert gemps("finish", address).returncode == 0
                assert evaluator.wait(PATIENCE) == 0, log.read_text(encoding="utf-8")
                assert worker.wait(PATIENCE) == 0
    assert len({one["version"]["incarnation"] for one in told(log, "evaluated")}) == 2


def test_ctrl_c_ends_it_and_leaves_the_run_alone(tmp_path: Path) -> None:
    log = tmp_path / "evaluator.log"
    with served(tmp_path, *OPEN_END) as (address, server):
        worker = started(command("work", "--server", address), tmp_path / "worker.log")
        with worker, started(following(address), log) as evaluator:
            wait_for(lambda: "accuracy" in log.read_text(encoding="utf-8"), evaluator, log)
            evaluator.send_signal(signal.SIGINT)
            assert evaluator.wait(PATIENCE) == INTERRUPTED
        assert "Traceback" not in log.read_text(encoding="utf-8")
        assert gemps("status", address).returncode == 0
        assert stop(server) == 0


def test_who_may_only_watch_is_told_in_one_line_that_it_takes_an_operator(tmp_path: Path) -> None:
    """The run goes on."""
    secrets = {role: f"{role}-" + "0123456789abcdef" for role in ("worker", "observer", "operator")}
    tokens = tmp_path / "tokens"
    tokens.write_text("".join(f"{role} {secret}\n" for role, secret in secrets.items()), encoding="utf-8")
    tokens.chmod(0o600)
    as_role = {role: {"GEMPS_CLIENT_TOKEN": secret} for role, secret in secrets.items()}
    log = tmp_path / "evaluator.log"
    with served(tmp_path, *OPEN_END, "--tokens", str(tokens)) as (address, server):
        worker = started(command("work", "--server", address), tmp_path / "worker.log", as_role["worker"])
        with worker, started(following(address, "--stop-at-accuracy", "0.01"), log, as_role["observer"]) as evaluator:
            assert evaluator.wait(PATIENCE) == FAILED
            last = log.read_text(encoding="utf-8").splitlines()[-1]
            assert last.startswith("gemps: an evaluator saw accuracy")
            assert "operator" in last
            status = json_lines(gemps("status", address, "--json", env=as_role["observer"]).stdout)[0]
            assert status["run_state"] == "RUN_STATE_TRAINING"
        assert stop(server) == 0


def test_options_of_a_follower_without_follow_are_refused() -> None:
    done = gemps("evaluate", "--server", "127.0.0.1:9", "--stop-at-accuracy", "0.9")
    assert done.returncode == USAGE
    assert "add --follow" in done.stderr


def test_a_file_cannot_be_followed(tmp_path: Path) -> None:
    assert gemps("evaluate", str(tmp_path / "model.safetensors"), "--follow").returncode == USAGE


def test_a_training_ends_at_its_target_with_the_curve_in_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    stop_early = ["--commits", "100000000", "--stop-at-accuracy", "0.9", "--evaluation-interval", "0.5"]
    done = gemps("train", "--workers", "2", "--eta", "0.1", *stop_early, "--run-dir", str(folder))
    assert done.returncode == 0, done.stderr
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["exit_codes"] == {"server": 0, "worker-0": 0, "worker-1": 0, "evaluator": 0}
    metrics = json_lines((folder / "metrics.jsonl").read_text(encoding="utf-8"))
    seen = [line["last_evaluation"] for line in metrics if "last_evaluation" in line]
    assert seen[-1]["version"]["clock"] == summary["version"]
    assert seen[-1]["accuracy"] == summary["accuracy"]
    history = json.loads((folder / "history.json").read_text(encoding="utf-8"))
    assert history["evaluations"][-1] == seen[-1]
    assert max(one["accuracy"] for one in history["evaluations"]) >= 0.9
    kept = evaluate_checkpoint(folder / "best", WorkerSettings(device="cpu"))
    assert kept.accuracy == max(one["accuracy"] for one in history["evaluations"])


def test_an_evaluator_that_fails_is_told_and_does_not_fail_the_training(tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "run"
    train = command(
        "train", "--workers", "1", *OPEN_END, "--evaluation-interval", "0.5", "--run-dir", str(folder), "--json"
    )
    with started(train, log) as process:
        wait_for(lambda: "last_evaluation" in log.read_text(encoding="utf-8"), process, log)
        (evaluator,) = [one for one in children(process.pid) if "--follow" in one.cmdline()]
        evaluator.kill()
        wait_for(lambda: bool(told(log, "evaluator_failed")), process, log)
        assert gemps("finish", told(log, "started")[0]["server"]).returncode == 0
        assert process.wait(PATIENCE) == 0
    assert (
        json.loads((folder / "summary.json").read_text(encoding="utf-8"))["exit_codes"]["evaluator"] == -signal.SIGKILL
    )


def test_a_script_of_ones_own_cannot_be_evaluated(tmp_path: Path) -> None:
    done = gemps("train", "--stop-at-accuracy", "0.9", "--run-dir", str(tmp_path / "run"), "--", "python", "-c", "pass")
    assert done.returncode == USAGE
    assert "Observer.report_evaluation" in done.stderr
    assert not (tmp_path / "run").exists()
