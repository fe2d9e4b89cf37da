"""A run's name and id, and workers that come to another run than their own: with a real server."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gem_server.durability import checkpoint
from gem_worker import ClientSettings, FinishedBeforeError, Observer, ParameterServer, ServerRefusedError

from tests.cli.processes import CLEAN, PATIENCE, gemps, served, stop
from tests.worker.loops import train
from tests.worker.serving import ServerThread
from tests.worker.zoo import make

ROOT = Path(__file__).parents[2]
IMPATIENT = ClientSettings(connect_timeout=20)


def connect(server: ServerThread, name: str, **more: Any) -> ParameterServer:
    return ParameterServer(server.address, make("perceptron"), name=name, client_settings=IMPATIENT, **more)


def status(server: ServerThread) -> dict[str, Any]:
    with Observer(server.address) as observer:
        return observer.get_status()


def commit_once(server: ServerThread, name: str, **more: Any) -> None:
    with connect(server, name, **more) as ps:
        train(ps, 1)


@pytest.mark.parametrize(("asked", "name"), [("a", "a"), ("", "a"), ("a", "")])
def test_a_worker_of_the_run_or_without_a_name_trains(asked: str, name: str) -> None:
    with ServerThread(run=name) as server:
        with connect(server, "w", run=asked) as ps:
            assert (ps.membership.run_name, ps.membership.commits) == (name, 0)
            assert ps.membership.run_id == status(server)["run_id"]
        assert status(server).get("run_name", "") == name


def test_a_worker_of_another_run_is_refused_for_good_by_a_sentence_with_both_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GEMPS_RUN", "cifar")
    with ServerThread(run="digits") as server:
        with pytest.raises(ServerRefusedError, match=r"the run 'cifar' .* run is 'digits'") as refused:
            connect(server, "w").join()
        assert (refused.value.reason, refused.value.is_final) == ("RUN", True)
        assert refused.value.__context__ is None, "its traceback would begin with gRPC's, which says the same"
        assert status(server)["workers"] == []


def test_the_id_outlives_restarts_and_a_name_until_another_is_given(tmp_path: Path) -> None:
    found = []
    for settings in ({"run": "first"}, {"resume": True}, {"resume": True, "run": "second"}, {"resume": True}):
        with ServerThread(data_dir=tmp_path, **settings) as server:
            commit_once(server, "w")
            found.append((status(server)["run_id"], status(server)["run_name"]))
    names = ["first", "first", "second", "second"]
    assert found == [(found[0][0], name) for name in names]
    with ServerThread(data_dir=tmp_path / "other") as server:
        assert status(server)["run_id"] != found[0][0]


def test_state_of_earlier_versions_gets_an_id_that_stays(tmp_path: Path) -> None:
    with ServerThread(data_dir=tmp_path) as server:
        commit_once(server, "w")
        before = status(server)["run_id"]
    forget_identity(tmp_path)
    ids = []
    for _ in range(2):
        with ServerThread(data_dir=tmp_path, resume=True) as server:
            ids.append(status(server)["run_id"])
            commit_once(server, "w")
    assert ids[0] == ids[1] != before


def forget_identity(data_dir: Path) -> None:
    """Make the newest checkpoint one of a version that knew no runs by name or id."""
    kept = checkpoint.read_latest(data_dir)
    assert kept is not None
    del kept.state["run"], kept.state["run_name"]
    checkpoint.write_checkpoint(data_dir, kept)


def test_a_worker_without_a_part_in_a_finished_run_is_told_so_and_one_with_a_part_sees_its_end(tmp_path: Path) -> None:
    """Also of a server that was started again."""
    with ServerThread(commits=1, run="digits", data_dir=tmp_path) as server:
        commit_once(server, "first")
    with ServerThread(commits=1, run="digits", data_dir=tmp_path, resume=True) as server:
        with pytest.raises(FinishedBeforeError, match=r"the run 'digits' .* was finished before worker other came"):
            connect(server, "other").join()
        for name, run in (("first", ""), ("other", "digits")):
            with connect(server, name, run=run) as ps:
                assert ps.finished


def test_a_worker_that_was_there_before_the_end_has_a_part_without_a_commit() -> None:
    with ServerThread(commits=1) as server, connect(server, "slow") as slow:
        commit_once(server, "fast")
        train(slow, 1)
        assert slow.finished


SCRIPT = """
import gemps
from tests.worker.zoo import make

with gemps.ParameterServer(model=make("perceptron")) as ps:
    while not ps.finished:
        pass
print("trained")
"""


def test_processes_without_a_part_exit_with_4_and_others_with_0(tmp_path: Path) -> None:
    with served(tmp_path, "--commits=20", "--run=digits", "--log-format=json") as (address, server):
        assert gemps("work", address, "--worker-name=w").returncode == 0
        late = gemps("work", address, "--worker-name=late")
        assert late.returncode == 4
        (line,) = late.stderr.splitlines()
        assert "the run 'digits'" in line
        assert "start a new server" in line
        assert gemps("work", address, "--worker-name=w").returncode == 0
        assert gemps("work", address, "--worker-name=late", env={"GEMPS_RUN": "digits"}).returncode == 0
        other = gemps("work", address, "--run=cifar")
        assert (other.returncode, "'cifar'" in other.stderr) == (2, True)
        shown = gemps("status", address)
        assert "run: digits (id " in shown.stdout
        assert stop(server) == 0
    lines = [json.loads(one) for one in (tmp_path / "server.log").read_text(encoding="utf-8").splitlines()]
    (of_run,) = [one for one in lines if one.get("event") == "run"]
    assert of_run["run_name"] == "digits"
    assert f"id {of_run['run_id']}" in shown.stdout


def test_a_script_without_a_part_exits_with_4(tmp_path: Path) -> None:
    with ServerThread(commits=1) as server:
        commit_once(server, "w")
        path = tmp_path / "script.py"
        path.write_text(SCRIPT, encoding="utf-8")
        done = {}
        for name in ("late", "w"):
            variables = {"GEMPS_SERVER": server.address, "GEMPS_WORKER_NAME": name, "PYTHONPATH": str(ROOT)}
            done[name] = subprocess.run(
                [sys.executable, str(path)],
                env=CLEAN | variables,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
    assert done["late"].returncode == 4, done["late"].stderr
    assert "was finished before worker late came" in done["late"].stderr.splitlines()[-1]
    assert (done["w"].returncode, done["w"].stdout) == (0, "trained\n"), done["w"].stderr


@pytest.mark.parametrize("name", ["a" * 257, "zero\u200bwidth"])
def test_names_have_the_characters_and_the_length_of_workers_names(name: str) -> None:
    for command in (("serve", "--bind=127.0.0.1:0"), ("work", "127.0.0.1:1")):
        done = gemps(*command, f"--run={name}")
        assert done.returncode == 2
        assert "a name " in done.stderr
