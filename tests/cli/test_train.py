"""`gemps train`, end to end, with real processes on real data."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from gem_cli.commands.train import _worker_environment
from gem_cli.errors import FAILED, INTERRUPTED, USAGE, CommandError
from gem_cli.training.run_folder import RunFolder
from gem_server.durability.lock import DirectoryLock
from gem_worker.settings import WorkerSettings
from safetensors import safe_open

from tests.cli.processes import (
    PATIENCE,
    children,
    command,
    gemps,
    gemps_here,
    in_terminal,
    json_lines,
    started,
    wait_for,
    wait_until_gone,
)

DETERMINED = [
    "--workers",
    "2",
    "--steps",
    "40",
    "--eta",
    "0.1",
    "--order",
    "round-robin",
    "--seed",
    "1",
    "--device",
    "cpu",
]


class Run:
    """A finished run, and what the command said."""

    def __init__(self, folder: Path, done: subprocess.CompletedProcess[str]) -> None:
        self.folder = folder
        self.done = done

    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))
        return summary


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("train") / "run"
    return Run(folder, gemps("train", *DETERMINED, "--json", "--run-dir", str(folder)))


def test_training_ends_well(run: Run) -> None:
    assert run.done.returncode == 0, run.done.stderr
    summary = run.summary()
    assert summary["exit_codes"] == {"server": 0, "worker-0": 0, "worker-1": 0}
    (beginning,) = [event for event in json_lines(run.done.stdout) if event["event"] == "started"]
    assert summary["server"] == beginning["server"]
    assert not summary["server"].endswith(":0")
    assert summary["commits"] == 2 * 40
    assert summary["payload_bytes_received"] == 4 * summary["parameters"] * summary["commits"]
    assert summary["payload_bytes_sent"] >= summary["payload_bytes_received"]
    assert summary["version"] == 2 * 40 + 1
    assert summary["accuracy"] > 0.8
    assert summary["interrupted"] is False


def test_json_lines_tell_the_run_from_start_to_end(run: Run) -> None:
    events = json_lines(run.done.stdout)
    names = [event["event"] for event in events]
    assert [event.get("phase", event["event"]) for event in events[:4]] == ["server", "kernels", "started", "workers"]
    assert names[-2:] == ["evaluated", "finished"]
    assert "status" in names
    assert events[-1]["summary"] == run.summary()


def test_run_folder_is_complete(run: Run) -> None:
    for name in ("model.safetensors", "metrics.jsonl", "summary.json", "history.json", "latest/model.safetensors"):
        assert (run.folder / name).stat().st_size > 0
    assert (run.folder / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in (run.folder / "logs").iterdir()} >= {"server.log", "worker-0.log", "worker-1.log"}


def test_metrics_are_the_reports_of_the_server(run: Run) -> None:
    lines = json_lines((run.folder / "metrics.jsonl").read_text(encoding="utf-8"))
    clocks = [line["version"]["clock"] for line in lines]
    assert clocks == sorted(clocks)
    assert lines[-1]["commits"] == 2 * 40
    assert {line["run_name"] for line in lines} == {run.folder.name}
    assert len({line["run_id"] for line in lines}) == 1
    means = lines[-1]["means"]
    assert means["commits"] == 2 * 40
    summary = run.summary()
    names = ("staleness_mean", "mean_pi", "blocked_fraction")
    assert [summary[name] for name in names] == [means[name] for name in names]
    assert all("time" in line for line in lines)


def test_tensorboard_has_the_curves_and_the_accuracy(run: Run) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.folder / "tensorboard"))
    events.Reload()
    assert events.Scalars("run/loss")[-1].step == 2 * 40 + 1
    assert events.Scalars("test/accuracy")[0].value == pytest.approx(run.summary()["accuracy"])


def test_summary_says_what_it_takes_to_repeat_the_run(run: Run) -> None:
    summary = run.summary()
    assert summary["seed"] == 1
    assert summary["settings"]["server"]["order"] == "round-robin"
    assert summary["settings"]["worker"]["task"] == "digits"
    assert {"python", "torch", "numpy", "grpcio", "gemps"} <= summary["versions"].keys()
    assert summary["hardware"]["cores"] >= 1


def test_final_model_has_the_names_of_the_state_dict(run: Run) -> None:
    with safe_open(run.folder / "model.safetensors", "np") as file:
        assert {name.rpartition(".")[2] for name in file.keys()} == {"weight", "bias"}  # noqa: SIM118 - not a dict


def test_two_runs_in_round_robin_order_with_one_seed_give_the_same_bytes(run: Run, tmp_path: Path) -> None:
    again = gemps("train", *DETERMINED, "--run-dir", str(tmp_path / "again"))
    assert again.returncode == 0, again.stderr
    model = "model.safetensors"
    assert (tmp_path / "again" / model).read_bytes() == (run.folder / model).read_bytes()


def test_evaluating_the_file_again_gives_the_same_figures(run: Run) -> None:
    done = gemps_here("evaluate", str(run.folder / "model.safetensors"), "--json")
    assert done.returncode == 0, done.stderr
    found, summary = json.loads(done.stdout), run.summary()
    assert (found["accuracy"], found["loss"]) == (summary["accuracy"], summary["test_loss"])


@pytest.mark.long
def test_without_a_terminal_progress_is_plain_lines_and_a_finished_run_goes_on_with_a_larger_budget(
    tmp_path: Path,
) -> None:
    done = gemps(
        "train", "--workers=1", "--steps=5", "--delta-wire=bfloat16", "--dashboard=0", f"--runs-dir={tmp_path}"
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^dashboard http://127\.0\.0\.1:[1-9]\d*/$", done.stdout, re.MULTILINE)
    assert "\x1b" not in done.stdout
    assert "updates/s" in done.stdout
    assert "test accuracy" in done.stdout
    (folder,) = tmp_path.iterdir()
    assert folder.name.endswith("-digits-gem")
    assert str(folder) in done.stdout

    more = gemps("train", "--workers=1", "--steps=25", f"--run-dir={folder}", "--resume")
    assert more.returncode == 0, more.stderr
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert (summary["commits"], summary["version"]) == (25, 26)
    clocks = [line["version"]["clock"] for line in json_lines((folder / "metrics.jsonl").read_text(encoding="utf-8"))]
    assert clocks == sorted(clocks)


def test_a_folder_in_use_is_refused(run: Run) -> None:
    done = gemps("train", "--run-dir", str(run.folder))
    assert done.returncode == USAGE
    assert "--resume" in done.stderr


def test_a_running_run_is_not_resumed(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    ready = RunFolder(tmp_path).ready_file
    ready.write_text("{}", encoding="utf-8")
    lock = DirectoryLock(tmp_path)
    lock.acquire()
    with pytest.raises(CommandError, match="is still running"):
        RunFolder.given(tmp_path, resume=True, shards=1)
    assert ready.exists()
    lock.release()
    assert RunFolder.given(tmp_path, resume=True, shards=1).path == tmp_path


@pytest.mark.long
def test_on_a_terminal_progress_is_a_live_view_of_the_run_and_each_worker(tmp_path: Path) -> None:
    code, written = in_terminal("train", "--workers", "2", "--steps", "100", "--run-dir", str(tmp_path / "run"))
    assert code == 0, written
    for text in ("loss", "staleness", "fairness", "worker-0", "worker-1", "finished", "test accuracy"):
        assert text in written
    assert "\x1b[?25l" in written  # the cursor is hidden while the view renews itself
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")


SCRIPT = """
import os, sys
import torch
from gem_worker import ParameterServer

index = int(os.environ["GEMPS_WORKER_INDEX"])
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
with ParameterServer(model=model) as ps:
    print("I am", os.environ["GEMPS_WORKER_NAME"], "of", os.environ["GEMPS_WORKERS"], "rank", ps.rank)
    wires = ps.membership
    print("deltas as", wires.delta_wire_type.name + ", parameters as", wires.parameter_wire_type.name)
    for step in range(10_000):
        if "fail" in sys.argv and index == 1 and step == 3:
            sys.exit("worker one has had enough")
        inputs = torch.randn(8, 4)
        loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).pow(2).mean()
        loss.backward()
        ps.step(loss)
        if "stop" in sys.argv and step == 19:
            break
"""


def test_a_command_gets_the_network_and_only_the_wire_types_that_were_given() -> None:
    """Without wire types of the user, the workers choose them."""
    given = WorkerSettings(network="slow", delta_wire="int4")
    assert _worker_environment(given, ["python"]).items() >= {
        ("GEMPS_NETWORK", "slow"),
        ("GEMPS_DELTA_WIRE", "int4"),
    }
    names = {name for name in _worker_environment(WorkerSettings(), ["python"]) if name.startswith("GEMPS_")}
    assert names == {"GEMPS_NETWORK"}


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "my_script.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return str(path)


@pytest.mark.long
def test_a_script_of_ones_own_trains_with_two_workers_and_without_a_budget_ends_the_run(
    script: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    wires = ["--delta-wire", "sparse", "--parameter-wire", "int4"]
    done = gemps("train", "--workers", "2", *wires, "--run-dir", str(folder), "--", "python", script, "stop")
    assert done.returncode == 0, done.stderr
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert (summary["run_state"], summary["commits"]) == ("finished", 2 * 20)
    assert summary["settings"]["worker"] == {"network": "auto", "delta_wire": "sparse", "parameter_wire": "int4"}
    assert summary["wire_types"] == {"sparse deltas and int4 parameters": 2}
    assert (folder / "model.safetensors").exists()
    said = (folder / "logs" / "worker-1.log").read_text(encoding="utf-8")
    assert "I am worker-1 of 2" in said
    assert "deltas as SPARSE_BLOCK, parameters as INT4_BLOCK" in said
    scored = gemps_here("evaluate", str(folder / "model.safetensors"))
    assert (scored.returncode, scored.stderr.count("\n")) == (USAGE, 1)
    assert "my_script.py stop), which alone knows model and data: load it there with gemps.load(" in scored.stderr


def test_options_without_effect_on_a_script_are_refused(script: str, tmp_path: Path) -> None:
    done = gemps_here(
        "train", "--batch-size", "8", "--model", "mlp", "--run-dir", str(tmp_path / "run"), "--", "python", script
    )
    assert done.returncode == USAGE
    assert "--model, --batch-size: only for the built-in tasks" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_a_worker_that_fails_is_told_and_the_others_go_on(script: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = gemps("train", "--workers", "2", "--steps", "30", "--run-dir", str(folder), "--", "python", script, "fail")
    assert done.returncode == FAILED
    assert "worker-1 failed with exit code 1" in done.stderr
    assert "worker one has had enough" in done.stderr
    assert str(folder / "logs" / "worker-1.log") in done.stderr
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["exit_codes"] == {"server": 0, "worker-0": 0, "worker-1": 1}
    assert summary["commits"] == 30 + 3 * (1 + summary["restarts"].get("worker-1", 0))


@pytest.mark.long
def test_warnings_of_workers_are_shown_once_and_stay_in_their_logs(tmp_path: Path) -> None:
    """A script that never calls backward, hides the end of the run, and has a warning of its own."""
    script = tmp_path / "nothing.py"
    script.write_text(
        "import warnings\nimport torch\nfrom gemps import ParameterServer\nmodel = torch.nn.Linear(8, 2)\n"
        "warnings.warn('of the script')\n"
        "with ParameterServer(model=model) as ps:\n    while True:\n        try:\n            ps.step()\n"
        "        except Exception:\n            pass\nprint('saved')\n"
    )
    folder = tmp_path / "run"
    done = gemps("train", "--workers", "2", "--steps", "10", "--run-dir", str(folder), "--", "python", str(script))
    assert done.returncode == 0, done.stdout + done.stderr
    shown = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("warning: ")]
    assert [line.split()[1:4] for line in shown] == [
        ["worker-0", "and", "worker-1:"],
        ["worker-0", "and", "worker-1:"],
    ]
    assert "no backward pass has reached the model" in shown[0]
    assert f"{script}:9: the run is finished" in shown[1]
    for worker in ("worker-0", "worker-1"):
        log = (folder / "logs" / f"{worker}.log").read_text(encoding="utf-8")
        assert all(text in log for text in ("of the script", "no backward pass", "except Exception", "saved"))


@pytest.mark.long
def test_a_script_that_never_joins_is_a_failure_that_names_the_server(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('no ParameterServer here')", encoding="utf-8")
    run = ["--run-dir", str(tmp_path / "run"), "--", "python", str(tmp_path / "script.py")]
    done = gemps("train", "--workers", "1", "--steps", "5", *run)
    assert done.returncode == FAILED
    assert re.search(
        r"no worker brought parameters to this run's server, 127\.0\.0\.1:\d+; a script needs", done.stderr
    )


@pytest.mark.long
def test_training_that_cannot_begin_says_so_and_ends(tmp_path: Path) -> None:
    data = ["--task", "cifar10", "--dataset-dir", str(tmp_path / "nowhere")]
    done = gemps("train", "--workers", "1", *data, "--run-dir", str(tmp_path / "run"))
    assert done.returncode == FAILED
    assert "--download" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_training_cannot_begin_without_a_worker_that_left_with_exit_code_0(script: str, tmp_path: Path) -> None:
    """As after SIGTERM."""
    own = ["sh", "-c", f'test "$GEMPS_WORKER_INDEX" = 1 && exit 0; exec {sys.executable} {script}']
    done = gemps("train", "--workers", "2", "--steps", "5", "--run-dir", str(tmp_path / "run"), "--", *own)
    assert done.returncode == FAILED
    assert "--min-workers 2, but workers left: 1" in done.stderr


@pytest.mark.long
def test_a_worker_that_is_stopped_because_training_cannot_begin_is_not_told_as_a_failure(
    script: str, tmp_path: Path
) -> None:
    own = [
        "sh",
        "-c",
        f'test "$GEMPS_WORKER_INDEX" = 1 && exec {sys.executable} missing.py; exec {sys.executable} {script}',
    ]
    done = gemps("train", "--workers", "2", "--steps", "5", "--run-dir", str(tmp_path / "run"), "--", *own)
    assert done.returncode == FAILED
    assert "worker-1 failed with exit code 2" in done.stderr
    assert "no model was trained; the logs" in done.stderr
    assert "--min-workers 2, but workers left: 1" in done.stderr
    assert "worker-0" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_that_does_not_start_ends_the_command_and_leaves_the_folder_to_the_next(tmp_path: Path) -> None:
    unsafe = {"NUMBA_THREADING_LAYER": "workqueue"}  # the layer that aborts the process; the server refuses it
    for _ in range(2):
        done = gemps("train", "--run-dir", str(tmp_path / "run"), env=unsafe)
        assert done.returncode == FAILED
        assert "NUMBA_THREADING_LAYER" in done.stderr
    (tmp_path / "run" / "notes.txt").write_text("mine", encoding="utf-8")
    done = gemps("train", "--run-dir", str(tmp_path / "run"), env=unsafe)
    assert (done.returncode, "is not empty" in done.stderr) == (USAGE, True)


AFTER_THE_RUN = """
import os, pathlib, threading

late = int(os.environ["GEMPS_WORKER_INDEX"]) == int(os.environ["GEMPS_WORKERS"]) - 1
if late and os.environ["WHEN"] == "before":
    threading.Event().wait()
import torch
from gem_worker import ParameterServer

model = torch.nn.Linear(4, 1)
with ParameterServer(model=model) as ps:
    while True:
        loss = model(torch.ones(4)).pow(2).sum()
        loss.backward()
        ps.step(loss)
if late and os.environ["WHEN"] == "after":
    threading.Event().wait()
if late:
    os.mkfifo("go")
    open("go").read()  # until the test opens it, too
    pathlib.Path("saved").touch()
"""


@pytest.fixture
def after_the_run(tmp_path: Path) -> list[str]:
    (tmp_path / "after.py").write_text(AFTER_THE_RUN, encoding="utf-8")
    train = ["train", "--workers={workers}", "--min-workers=1", "--steps=5", f"--run-dir={tmp_path / 'run'}"]
    return [*train, "--set=worker_exit_timeout={seconds}", "--", "python", str(tmp_path / "after.py")]


def filled(arguments: list[str], *, seconds: float, workers: int = 1) -> list[str]:
    return [part.format(seconds=seconds, workers=workers) for part in arguments]


def test_what_a_script_does_after_the_run_is_waited_for_and_told(after_the_run: list[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    train = command(*filled(after_the_run, seconds=PATIENCE))
    with started(train, log, env={"WHEN": "never"}, cwd=tmp_path) as process:
        wait_for(lambda: "waiting for worker-0 to end" in log.read_text(encoding="utf-8"), process, log)
        wait_for((tmp_path / "go").exists, process, log)
        (tmp_path / "go").write_text("", encoding="utf-8")
        assert process.wait(PATIENCE) == 0, log.read_text(encoding="utf-8")
    assert (tmp_path / "saved").exists()
    assert "for 120 s at most (worker_exit_timeout)" in log.read_text(encoding="utf-8")


@pytest.mark.long
def test_a_worker_that_has_to_be_killed_after_the_run_is_a_failure(after_the_run: list[str], tmp_path: Path) -> None:
    done = gemps(*filled(after_the_run, seconds=0), env={"WHEN": "after"}, cwd=tmp_path)
    assert done.returncode == FAILED
    assert "worker-0 was killed" in done.stderr
    assert "worker_exit_timeout" in done.stderr


@pytest.mark.long
def test_a_worker_that_never_joined_is_stopped_after_the_run_and_is_no_failure(
    after_the_run: list[str], tmp_path: Path
) -> None:
    arguments = filled(after_the_run, seconds=PATIENCE, workers=2)
    done = gemps(*arguments, env={"WHEN": "before"}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "worker-1 came too late" in done.stdout


def endless(folder: Path) -> list[str]:
    """With an evaluator, which must not be left behind either."""
    budget = ["--commits", "100000000", "--evaluation-interval", "1"]
    return command("train", "--workers", "2", *budget, "--run-dir", str(folder), "--json")


def is_training(log: Path) -> bool:
    return "RUN_STATE_TRAINING" in log.read_text(encoding="utf-8")


def test_ctrl_c_ends_cleanly_and_leaves_nothing_running(tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "run"
    with started(endless(folder), log) as process:
        wait_for(lambda: is_training(log), process, log)
        family = children(process.pid)
        assert len(family) >= 4
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == INTERRUPTED
        wait_until_gone(family)
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["interrupted"] is True
    assert summary["exit_codes"]["server"] == 0
    for name in ("model.safetensors", "history.json", "plot.png"):
        assert (folder / name).exists()
    uptimes = [line["uptime_seconds"] for line in json_lines((folder / "metrics.jsonl").read_text(encoding="utf-8"))]
    assert uptimes == sorted(uptimes)
    events = [event["event"] for event in json_lines(log.read_text(encoding="utf-8"))]
    assert not {"worker_failed", "evaluator_failed"} & set(events)


STUBBORN = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("here", flush=True)
time.sleep(1e6)
"""


def test_a_second_ctrl_c_kills(tmp_path: Path) -> None:
    stubborn = tmp_path / "stubborn.py"
    stubborn.write_text(STUBBORN, encoding="utf-8")
    log, folder = tmp_path / "log", tmp_path / "run"
    train = command("train", "--workers", "1", "--run-dir", str(folder), "--json", "--", "python", str(stubborn))
    with started(train, log) as process:
        worker_log = folder / "logs" / "worker-0.log"
        wait_for(lambda: worker_log.exists() and "here" in worker_log.read_text(encoding="utf-8"), process, log)
        family = children(process.pid)
        process.send_signal(signal.SIGINT)
        wait_for(lambda: "interrupted" in log.read_text(encoding="utf-8"), process, log)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == INTERRUPTED
        wait_until_gone(family)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("sharded") / "run"
    return Run(folder, gemps("train", "--shards=2", *DETERMINED, "--run-dir", str(folder)))


@pytest.mark.long
def test_two_shards_train_the_same_model(run: Run, sharded: Run) -> None:
    assert sharded.done.returncode == 0, sharded.done.stderr
    assert sharded.summary()["exit_codes"] == {"server": 0, "shard-1": 0, "worker-0": 0, "worker-1": 0}
    assert sharded.summary()["accuracy"] == run.summary()["accuracy"]
    assert sharded.summary()["payload_bytes_received"] is None
    assert [one.summary()["settings"]["server"]["durability"] for one in (run, sharded)] == ["interval", "commit"]
    assert (sharded.folder / "model.safetensors").read_bytes() == (run.folder / "model.safetensors").read_bytes()


def more_of(sharded: Run, shards: int) -> subprocess.CompletedProcess[str]:
    more = ("--steps=45", "--resume", f"--shards={shards}")
    return gemps("train", *DETERMINED, *more, "--run-dir", str(sharded.folder))


@pytest.mark.long
def test_a_run_does_not_go_on_with_another_number_of_shards(sharded: Run) -> None:
    refused = more_of(sharded, 3)
    assert refused.returncode == USAGE
    assert all(text in refused.stderr for text in ("--shards 2", "gemps shards merge", "gemps shards split"))


@pytest.mark.long
def test_a_run_goes_on_with_as_many_shards(sharded: Run) -> None:
    done = more_of(sharded, 2)
    assert done.returncode == 0, done.stderr
    assert sharded.summary()["version"] == 2 * 45 + 1


@pytest.mark.long
@pytest.mark.parametrize("is_killed", [False, True])
def test_ctrl_c_or_a_killed_shard_ends_all_shards_and_leaves_the_merged_model(is_killed: bool, tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "run"
    train = command("train", "--shards=2", "--workers=1", "--commits=100000000", f"--run-dir={folder}", "--json")
    with started(train, log) as process:
        wait_for(lambda: is_training(log), process, log)
        family = children(process.pid)
        (shard,) = [one for one in family if "--shard=1/2" in one.cmdline()]
        shard.kill() if is_killed else process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == (FAILED if is_killed else INTERRUPTED)
        wait_until_gone(family)
    text, summary = log.read_text(encoding="utf-8"), json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert ("shard-1 was ended by SIGKILL" in text, "server_failed" in text) == (is_killed, is_killed)
    assert summary["exit_codes"]["server"] == int(is_killed)
    with safe_open(folder / "model.safetensors", "np") as file:
        assert sum(file.get_tensor(name).size for name in file.keys()) == summary["parameters"]  # noqa: SIM118


@pytest.mark.long
def test_an_evaluator_ends_a_run_with_shards(tmp_path: Path) -> None:
    stop = ["--commits=100000000", "--evaluation-interval=0.5", "--stop-at-accuracy=0.5"]
    trained = Run(tmp_path, gemps("train", "--shards=2", "--workers=1", *stop, "--run-dir", str(tmp_path)))
    assert trained.done.returncode == 0, trained.done.stderr
    assert trained.summary()["reached_stop_at_accuracy"]


@pytest.mark.skipif(not psutil.LINUX, reason="only Linux tells children of their parent's death")
def test_children_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "run"
    with started(endless(folder), log) as process:
        wait_for(lambda: is_training(log), process, log)
        family = children(process.pid)
        process.kill()
        wait_until_gone(family)
