"""Real processes of real contenders, at sizes that take no time; nothing here looks at how fast they are."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.harness import processes
from benchmarks.harness.run import Nurseries, run_once
from benchmarks.peers import CONTENDERS
from benchmarks.peers.gemps import Gemps
from benchmarks.peers.interface import Case
from benchmarks.peers.limits import PlainTcp
from benchmarks.peers.model import Model, check_fresh

SECONDS = 0.5


@pytest.fixture(scope="module")
def nurseries() -> Iterator[Nurseries]:
    made = Nurseries()
    yield made
    made.close()


@pytest.mark.parametrize(
    "name",
    [
        "gemps-float32",
        pytest.param("gemps-bfloat16-float32", marks=pytest.mark.long),
        "gemps-shared-memory",
        pytest.param("torch-rpc-tcp", marks=pytest.mark.long),
        pytest.param("torch-rpc-shared-memory", marks=pytest.mark.long),
        pytest.param("torch-gloo-paper", marks=pytest.mark.long),
        "ray-actor",
        "flower-transfer",
        "memory-copy",
        "tcp",
        "grpc-echo-python",
        pytest.param("grpc-echo-cpp", marks=pytest.mark.long),
        "grpc-echo-cpp-both",
    ],
)
def test_a_contender_runs(name: str, nurseries: Nurseries) -> None:
    contender = CONTENDERS[name]
    if reason := contender.unavailable():
        pytest.skip(reason)
    run = run_once(contender, Case(20_000, 2), SECONDS, 7, nurseries)
    assert (run.contender, run.parameters, run.workers, run.round) == (name, 20_000, 2, 7)
    if run.error is not None:  # a machine that is too busy to begin in time
        assert "no worker came to make a step" in run.error
        return
    assert len(run.commits) == 2
    assert len(run.took) == 101
    assert (run.server_anonymous > 0) == (name != "memory-copy")


def test_workers_that_fail_are_reported_with_their_error(nurseries: Nurseries) -> None:
    class Nobody(PlainTcp):
        def command(self, case: Case, folder: Path) -> list[str]:
            (folder / "ready.json").write_text(json.dumps({"address": "127.0.0.1:1"}), encoding="utf-8")
            return ["sleep", "60"]

    run = run_once(Nobody(), Case(100, 2), SECONDS, 0, nurseries)
    assert run.error is not None
    assert "ConnectionRefusedError" in run.error
    assert run.commits == []


def test_a_server_that_does_not_start_is_reported_with_its_last_words(nurseries: Nurseries) -> None:
    class Broken(PlainTcp):
        def command(self, case: Case, folder: Path) -> list[str]:
            return [sys.executable, "-c", "raise SystemExit('no such port')"]

    run = run_once(Broken(), Case(100, 2), SECONDS, 0, nurseries)
    assert run.error is not None
    assert "the server did not start" in run.error
    assert "no such port" in run.error


def test_a_server_that_cannot_be_imported_is_reported(nurseries: Nurseries, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.harness.run.interpreter", lambda home: "false")
    run = run_once(CONTENDERS["tcp"], Case(100, 1), SECONDS, 0, nurseries)
    assert run.error is not None
    assert "did not start" in run.error


def test_a_server_that_refuses_its_flags_is_reported(nurseries: Nurseries) -> None:
    class Mistaken(Gemps):
        def flags(self, folder: Path) -> list[str]:
            return ["--no-such-flag"]

    run = run_once(Mistaken("float32", "float32"), Case(100, 2), SECONDS, 0, nurseries)
    assert run.error is not None
    assert "--no-such-flag" in run.error


def test_old_parameters_are_found() -> None:
    model = Model(1000, rank=0)
    model.parameters[:] = 1.0
    check_fresh()
    model.parameters[500:700] = 0.0
    with pytest.raises(RuntimeError, match="1 of 8 parts are old"):
        check_fresh()


def test_a_tree_is_a_process_and_all_below_it() -> None:
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        below = int(process.stdout.readline())
        assert set(processes.tree([process.pid])) == {process.pid, below}
        assert processes.anonymous_and_shared([process.pid])[0] > 0
        assert processes.processor_seconds([process.pid]) >= 0
        processes.end([process.pid])
        assert not processes.alive(below)


def test_what_is_gone_counts_nothing() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert processes.anonymous_and_shared([process.pid]) == (0, 0)
    assert processes.shared_once([process.pid]) == 0
