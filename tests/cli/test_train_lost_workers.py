"""Workers and servers of `gemps train` that are lost, and scripts that end before the budget: real processes."""

import contextlib
import json
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from gem_cli.errors import FAILED
from gem_worker.client import Observer

from tests.cli.processes import PATIENCE, children, command, gemps, started, wait_for
from tests.launch.scripts import script

# A worker without PyTorch. Worker 1 acts at its third step; `starts` says how often it was started before.
WORKER = """
index = os.environ[INDEX]
starts = len(os.listdir("."))
if index == "1":
    open(f"start-{starts}", "w").close()

def killed():
    os.kill(os.getpid(), signal.SIGKILL)

def failed():
    raise ValueError("no more data")

def nothing():
    pass

def work(act, until=10**9):
    with Client(os.environ["GEMPS_SERVER"], worker_name=os.environ["GEMPS_WORKER_NAME"], layout=LAYOUT) as client:
        rank, buffer = join(client)
        delta = memoryview(np.full(1000, -0.001, np.float32)).cast("B")
        try:
            for step in range(until):
                client.commit(delta, buffer, loss=1.0)
                if index == "1" and step == 2:
                    act()
        except RunFinishedError:
            pass

"""


def arguments(folder: Path, text: str, *options: str) -> list[str]:
    """Return the arguments of `gemps train` with two workers that run this text."""
    return ["train", "--workers=2", *options, f"--run-dir={folder / 'run'}", "--", *script(folder, WORKER + text)]


def trained(folder: Path, text: str, *options: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Train. Returns how it ended, and the summary."""
    (folder / "starts").mkdir()
    done = gemps(*arguments(folder, text, *options), cwd=folder / "starts")
    return done, summary_of(folder)


def summary_of(folder: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((folder / "run" / "summary.json").read_text(encoding="utf-8"))
    return summary


def server_log(folder: Path) -> list[str]:
    return (folder / "run" / "logs" / "server.log").read_text(encoding="utf-8").splitlines()


def test_a_killed_worker_is_started_again_under_its_name_and_spends_its_budget(tmp_path: Path) -> None:
    done, summary = trained(tmp_path, "work(nothing if starts else killed)", "--steps=40")
    assert done.returncode == 0, done.stderr
    assert "worker-1 was ended by SIGKILL" in done.stderr
    assert "worker-1 is started again in 1 s (attempt 1 of 3)" in done.stdout
    assert "not started again" not in done.stdout
    assert (summary["run_state"], summary["restarts"], summary["commits"]) == ("finished", {"worker-1": 1}, 2 * 40)
    assert summary["exit_codes"] == {"server": 0, "worker-0": 0, "worker-1": 0}
    log = server_log(tmp_path)
    assert any("worker worker-1 is gone: its process was ended by SIGKILL" in line for line in log)
    ranks = [line.partition(" rank ")[2][0] for line in log if "worker worker-1 joined" in line]
    assert len(ranks) == 2
    assert len(set(ranks)) == 1


@pytest.mark.long
def test_a_worker_that_fails_again_and_again_is_given_up_and_the_run_fails(tmp_path: Path) -> None:
    done, summary = trained(tmp_path, "work(killed)", "--steps=40")
    assert done.returncode == FAILED
    assert done.stderr.count("worker-1 was ended by SIGKILL") == 4
    assert "worker-1 is not started again, because it has failed 4 times in a row" in done.stdout
    assert (summary["run_state"], summary["restarts"]) == ("finished", {"worker-1": 3})
    assert summary["commits"] == 40 + 4 * 3
    assert summary["exit_codes"] == {"server": 0, "worker-0": 0, "worker-1": -9}


def test_a_worker_that_fails_twice_at_the_same_place_without_a_commit_is_given_up(tmp_path: Path) -> None:
    broken = """
def broken():
    with Client(os.environ["GEMPS_SERVER"], worker_name=os.environ["GEMPS_WORKER_NAME"], layout=LAYOUT) as client:
        join(client)
        failed()

broken()
"""
    done, summary = trained(tmp_path, broken, "--workers=1")
    assert done.returncode == FAILED
    assert (
        "worker-0 is not started again, because it has failed at the same place twice, without a commit in between: "
        "ValueError: no more data\n"
    ) in done.stdout
    assert (summary["run_state"], summary["restarts"], summary["commits"]) == ("finished", {"worker-0": 1}, 0)


@pytest.mark.long
def test_a_script_that_fails_before_it_joins_is_not_started_again(tmp_path: Path) -> None:
    done, summary = trained(tmp_path, "failed()", "--steps=40")
    assert done.returncode == FAILED
    assert "ValueError: no more data" in done.stderr
    assert "again" not in done.stdout
    assert (summary["run_state"], summary["restarts"]) == ("waiting", {})


@pytest.mark.long
def test_a_run_whose_scripts_have_all_ended_is_finished_and_goes_on_when_it_is_resumed(tmp_path: Path) -> None:
    done, summary = trained(tmp_path, "work(nothing, until=5)")
    assert done.returncode == 0, done.stderr
    assert "every worker has ended: the run is finished at version 11\n" in done.stdout
    assert (summary["run_state"], summary["commits"]) == ("finished", 2 * 5)
    again = gemps(*arguments(tmp_path, "work(nothing, until=5)", "--resume"), cwd=tmp_path / "starts")
    assert again.returncode == 0, again.stderr
    assert (summary_of(tmp_path)["run_state"], summary_of(tmp_path)["commits"]) == ("finished", 4 * 5)


@pytest.mark.long
def test_a_worker_that_ends_with_exit_code_0_before_its_budget_is_not_started_again(tmp_path: Path) -> None:
    done, summary = trained(tmp_path, "work(sys.exit)", "--steps=40")
    assert done.returncode == 0, done.stderr
    assert (summary["run_state"], summary["restarts"], summary["commits"]) == ("finished", {}, 40 + 3)


@pytest.mark.long
@pytest.mark.parametrize("shards", [1, 2])
def test_after_a_killed_server_the_last_line_is_the_command_that_continues_the_run(shards: int, tmp_path: Path) -> None:
    (tmp_path / "starts").mkdir()
    log = tmp_path / "log"
    options = ("--commits=100000000", "--set=checkpoint_commits=20", "--eta=0.02", f"--shards={shards}")
    train = command(*arguments(tmp_path, "work(nothing)", *options))
    with started(train, log, cwd=tmp_path / "starts") as process:
        wait_for(lambda: any("checkpoint of clock 2" in line for line in lines(tmp_path)), process, log)
        (server,) = children_with(f"--data-dir={data_dir(tmp_path, shards)}", process.pid)
        server.kill()
        assert process.wait(PATIENCE) == FAILED
    last = log.read_text(encoding="utf-8").splitlines()[-1]
    program, *again = shlex.split(last.partition("newest checkpoint: ")[2])
    assert program == "gemps"
    assert {"--resume", "--eta=0.02", "--commits=100000000", f"--shards={shards}"} <= set(again)
    commits = summary_of(tmp_path)["commits"]
    again[again.index("--commits=100000000")] = f"--commits={commits + 1000}"
    done = gemps(*again, cwd=tmp_path / "starts")
    assert done.returncode == 0, done.stderr
    assert summary_of(tmp_path)["commits"] == commits + 1000


def children_with(argument: str, pid: int) -> list[psutil.Process]:
    """Children of the process that were started with this argument, and run."""
    found = []
    for one in children(pid):
        with contextlib.suppress(psutil.Error):  # it ends now
            if argument in one.cmdline():
                found.append(one)
    return found


def lines(folder: Path) -> list[str]:
    return server_log(folder) if (folder / "run" / "logs" / "server.log").exists() else []


def data_dir(folder: Path, shards: int) -> Path:
    return folder / "run" if shards == 1 else folder / "run" / "shards" / "0"


@pytest.mark.long
def test_an_evaluator_that_is_slow_evaluates_the_last_version_before_all_ends(tmp_path: Path) -> None:
    """The evaluator is stopped before the run ends, and continued when the command reports that it waits for it."""
    log, folder = tmp_path / "log", tmp_path / "run"
    evaluated = folder / "logs" / "evaluator.log"
    train = ("train", "--workers=1", "--commits=100000000", "--evaluation-interval=0.5", f"--run-dir={folder}")
    with started(command(*train), log) as process:
        wait_for(lambda: evaluated.exists() and "version" in evaluated.read_text(encoding="utf-8"), process, log)
        (evaluator,) = children_with("evaluate", process.pid)
        evaluator.send_signal(signal.SIGSTOP)
        address = json.loads((folder / "server.json").read_text(encoding="utf-8"))["address"]
        with Observer(address) as observer:
            last = observer.control("finish", "enough").version.clock
        said = "waiting for evaluator to evaluate the last version"
        wait_for(lambda: said in log.read_text(encoding="utf-8"), process, log)
        evaluator.send_signal(signal.SIGCONT)
        assert process.wait(2 * PATIENCE) == 0
    status = json.loads((folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert status["last_evaluation"]["version"]["clock"] == status["version"]["clock"] >= last
    assert summary_of(tmp_path)["settings"]["server"]["limits"]["exit_grace"] == 3600
