"""Workers in four languages train one model on one server."""

import json
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from gemps.v1.observer_pb2_grpc import ObserverServiceStub
from gemps.v1.status_pb2 import GetStatusRequest, RunStatus

from tests.cli.processes import command, gemps, wait_for
from tests.examples.workers import accuracy_in, ended, log_of, serving, working
from tests.figures import Figures

# Each worker's budget. With it all end at the same count of commits, so what tells of fairness is taken before.
STEPS = 300
# Commits of a worker from which on the index is looked at: the status counts from the moment when all were there.
SOME = 50

# Workers are built where no other test has done that before.
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def test_python_typescript_cpp_and_go_workers_train_one_model_at_an_equal_pace(
    cpp_worker: list[str],
    typescript_worker: list[str],
    go_worker: list[str],
    digits: Path,
    tmp_path: Path,
    figures: Figures,
) -> None:
    """A worker's pace follows from its language, and from what else the machine does.

    On a server of their own each commits as fast as it can, and some have made hundreds of commits more than others. So
    that equal workers are compared the server gives them an equal pace: --order round-robin serves one request of each
    in turn. What is left to differ is whether they all keep their turns, and end with their budgets.
    """
    workers = {
        **{f"python-{i}": command("work", "--task", "digits") for i in range(2)},
        **{f"typescript-{i}": [*typescript_worker, "--task", str(digits)] for i in range(2)},
        **{f"cpp-{i}": [*cpp_worker, "--task", str(digits)] for i in range(2)},
        **{f"go-{i}": [*go_worker, "--task", str(digits)] for i in range(2)},
    }
    data = tmp_path / "data"
    arguments = (
        *("--rule", "gem", "--order", "round-robin", "--min-workers", str(len(workers)), "--steps", str(STEPS)),
        *("--data-dir", str(data), "--exit-when-finished"),
    )
    with serving(tmp_path, *arguments) as (address, server), ExitStack() as stack:
        processes = {
            name: stack.enter_context(working(worker, name, address, tmp_path)) for name, worker in workers.items()
        }
        with grpc.insecure_channel(address) as channel:
            stub = ObserverServiceStub(channel)
            seen: list[RunStatus] = []

            def all_train() -> bool:
                seen.append(stub.GetStatus(GetStatusRequest(), timeout=60).status)
                return min((worker.commits for worker in seen[-1].workers), default=0) >= SOME

            wait_for(all_train, server, tmp_path / "server.log")
        assert {name: ended(process, tmp_path, name) for name, process in processes.items()} == dict.fromkeys(
            workers, 0
        )
        assert server.wait(120) == 0
    commits = {worker.name: worker.commits for worker in seen[-1].workers}
    index = seen[-1].jain_index
    figures(f"a mixed run of {len(workers)} workers", f"Jain's index {index:.4f}: {commits}")
    assert set(commits) == set(workers)
    assert max(commits.values()) < STEPS, "one had ended: they were not compared while all trained"
    assert index >= 0.98
    # One version for the first parameters, and one for each commit.
    assert f"stopped at clock {1 + STEPS * len(workers)}" in (tmp_path / "server.log").read_text(encoding="utf-8")

    evaluated = gemps("evaluate", str(data / "latest" / "model.safetensors"), "--json")
    assert evaluated.returncode == 0, evaluated.stderr
    assert json.loads(evaluated.stdout)["accuracy"] >= 0.95
    for name in ("typescript-0", "cpp-0", "go-0"):
        # In their own arithmetic, of what the server sent them last.
        assert accuracy_in(log_of(tmp_path, name)) >= 0.95
