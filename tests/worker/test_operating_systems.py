"""Workers train where Windows or macOS lack modules and names of Linux (restricted_system.py)."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from gem_worker import Observer, WorkerSettings, evaluate_checkpoint

from tests.worker.serving import Process, Processes, ServerThread, processes_in

RESTRICTED = str(Path(__file__).with_name("restricted_system.py"))
# Its model is large enough for shared memory.
LEARN = ("--task=digits28", "--model=mlp", "--log-format=json")

SCRIPT = """
import sys
import torch
from gemps import ParameterServer
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.manual_seed(0)
    inputs = torch.randn(96, 8)
    data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    processes = int(sys.argv[1])
    with ParameterServer(model=model, optimizer=optimizer) as ps:
        loader = DataLoader(
            data, 16, num_workers=processes, multiprocessing_context="spawn" if processes else None
        )
        for _ in range(10**9):
            for inputs, labels in loader:
                loss = functional.cross_entropy(model(inputs), labels)
                loss.backward()
                ps.step(loss, samples=len(labels))
    print(f"{ps.applied_steps} steps, loss {loss.item():.3f}")
"""


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with processes_in(tmp_path) as started:
        yield started


def lines(worker: Process) -> list[dict[str, object]]:
    assert worker.wait() == 0, worker.output
    return [json.loads(line) for line in worker.output.splitlines()]


@pytest.mark.long
@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_a_restricted_worker_learns_digits_over_tcp_beside_one_that_shares_memory(
    system: str, processes: Processes, tmp_path: Path
) -> None:
    server, address = processes.serve(
        "--epochs=8", "--min-workers=2", f"--shared-memory-socket={tmp_path / 'memory'}"
    )  # fmt: skip
    restricted = processes.start(system, RESTRICTED, system, "gemps", "work", address, *LEARN)
    other = processes.gemps("other", "work", address, *LEARN)
    joined, *_, end = lines(restricted)
    assert (joined["exchange"], lines(other)[0]["exchange"]) == ("network", "shared-memory")
    assert (end["event"], end["message"]) == ("ended", "the run is finished")
    assert server.wait() == 0, server.output
    assert evaluate_checkpoint(processes.checkpoint, WorkerSettings(task="digits28", model="mlp")).accuracy > 0.9


@pytest.mark.long
@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_a_restricted_script_trains_with_its_own_optimizer(system: str, processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    with ServerThread(steps=12, rule_settings="momentum=0") as server:
        script = processes.start(
            "script", RESTRICTED, system, str(tmp_path / "script.py"), "0", GEMPS_SERVER=server.address
        )
        assert script.wait() == 0, script.output
    assert "12 steps, loss" in script.output


@pytest.mark.long
def test_restricted_observers_show_and_evaluate_a_run(processes: Processes, tmp_path: Path) -> None:
    best = tmp_path / "best"
    with ServerThread(steps=3) as server:
        worker = processes.gemps("worker", "work", server.address)
        assert worker.wait() == 0, worker.output
        status = processes.start("status", RESTRICTED, "win32", "gemps", "status", server.address, "--json")
        follow = processes.start(
            "follow", RESTRICTED, "win32", "gemps", "evaluate", f"--server={server.address}", "--follow",
            f"--keep-best={best}",
        )  # fmt: skip
        assert status.wait() == 0, status.output
        assert json.loads(status.output)["run_state"] == "RUN_STATE_FINISHED"
        assert follow.wait() == 0, follow.output
    assert {path.name for path in best.iterdir()} == {"model.safetensors", "best.json"}


@pytest.mark.long
def test_an_interrupted_restricted_worker_leaves(processes: Processes) -> None:
    with ServerThread() as server:
        worker = processes.start("worker", RESTRICTED, "win32", "gemps", "work", server.address, "--log-interval=0")
        worker.until_log_has(" step=3 ")
        worker.interrupt()
        assert worker.wait() == 130, worker.output
        with Observer(server.address) as observer:
            assert observer.get_status()["workers"][0]["state"] == "WORKER_STATE_LEFT"


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        (("serve",), "run gemps serve on Linux or in WSL"),
        (("train",), "run gemps serve on Linux or in WSL"),
        (("work", "unix:/run/gemps"), "write HOST:PORT"),
    ],
    ids=lambda found: found[0] if isinstance(found, tuple) else "",
)
def test_what_windows_cannot_do_is_one_line_with_the_fix(
    arguments: tuple[str, ...], fix: str, processes: Processes, tmp_path: Path
) -> None:
    before = sorted(os.listdir())
    child = processes.start("command", RESTRICTED, "win32", "gemps", *arguments)
    assert child.wait() in (1, 2)
    assert len(child.output.splitlines()) == 1
    assert fix in child.output
    assert sorted(os.listdir()) == before


@pytest.mark.long
def test_a_data_loader_may_spawn_its_processes_during_a_connection(processes: Processes, tmp_path: Path) -> None:
    """As it does by default on Windows and macOS."""
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    with ServerThread(steps=4, rule_settings="momentum=0") as server:
        script = processes.start("script", str(tmp_path / "script.py"), "1", GEMPS_SERVER=server.address)
        assert script.wait() == 0, script.output
    assert "4 steps, loss" in script.output
