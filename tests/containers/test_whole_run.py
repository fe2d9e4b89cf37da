"""`docker compose up --build --scale worker=N`: all come, train to the budget, and go; the model is on the volume."""

import re
import subprocess
import time
from datetime import datetime
from pathlib import Path

import pytest
import torch
from gem_worker import evaluate_checkpoint
from gem_worker.models import create_model
from gem_worker.settings import WorkerSettings
from gem_worker.tasks import TaskOptions, create_task
from safetensors.torch import load_file

from tests.figures import Figures

from .project import Project, gemps_process, host_name, inspect, logs, wait_until

COMMITS = 20_000


@pytest.mark.timeout(1800)
def test_all_workers_train_to_the_budget_and_everybody_exits_with_0(
    project: Project, workers: int, figures: Figures, tmp_path: Path
) -> None:
    began = time.time()
    scale = ("--build", "--scale", f"worker={workers}")
    with project.up(*scale, GEMPS_COMMITS=COMMITS, GEMPS_MIN_WORKERS=workers) as up:
        (server,) = appear(project, "server", 1, up)
        ids = appear(project, "worker", workers, up)
        wait_until(lambda: "training starts" in logs(server), "all workers have joined", up)
        memory = [unique_bytes(one) for one in ids]
        server_memory = unique_bytes(server)
        up.wait(900)
    ended = time.time()

    assert up.returncode == 0
    assert project.exit_codes().keys() >= {f"{project.name}-server-1"}
    assert set(project.exit_codes().values()) == {0}
    assert len(project.exit_codes()) == workers + 1

    state, model_file = project.state(tmp_path)
    commits = {worker["name"]: worker["commits"] for worker in state["workers"]}
    assert commits.keys() == {host_name(one) for one in ids}
    assert min(commits.values()) > 0
    assert sum(commits.values()) == state["commits"] == COMMITS
    assert all("ended: the run is finished" in logs(one) for one in ids)
    kit = project.compose("run", "--rm", "--no-deps", "-T", "server", "gemps", "conformance", "list")
    assert "commit-small" in kit

    task = create_task("digits", TaskOptions.from_settings(WorkerSettings()))
    model = create_model("mlp", task.input_shape, task.classes, seed=1)
    model.load_state_dict(load_file(model_file), strict=True)
    found = evaluate_checkpoint(model_file, WorkerSettings(device="cpu"))
    assert found.accuracy >= 0.95
    assert all(torch.isfinite(tensor).all() for tensor in model.state_dict().values())

    joined = times(logs(server), "joined from")
    serving = times(logs(server), "serving on")[0]
    figures(
        f"{workers} workers",
        f"serving {serving - began:.0f} s after `up`, first joined {joined[0] - began:.0f} s, all "
        f"{joined[workers - 1] - began:.0f} s; finished {times(logs(server), 'finished:')[0] - began:.0f} s, "
        f"compose returned {ended - began:.0f} s",
    )
    figures(
        f"{workers} workers, memory of their own",
        f"MB: a worker {min(memory) / 1e6:.0f} to {max(memory) / 1e6:.0f}, the "
        f"server {server_memory / 1e6:.0f}; commits a worker {min(commits.values())} to {max(commits.values())}; "
        f"accuracy {found.accuracy:.4f}",
    )

    again_a_finished_run_ends_by_itself(project, workers)


def again_a_finished_run_ends_by_itself(project: Project, workers: int) -> None:
    """The same command again, on the same volume: nothing is left to do, and nobody fails or waits for ever."""
    with project.up("--scale", f"worker={workers}", GEMPS_COMMITS=COMMITS, GEMPS_LIMITS_EXIT_LINGER=20) as up:
        up.wait(900)
    assert up.returncode == 0
    assert set(project.exit_codes().values()) == {0}
    (server,) = project.containers("server")
    assert "is finished" in logs(server)


def appear(project: Project, service: str, number: int, up: subprocess.Popen[str]) -> list[str]:
    """The containers of a service, once all of them run."""

    def running() -> list[str]:
        return [one for one in project.containers(service) if inspect(one)["State"]["Running"]]

    wait_until(lambda: len(running()) == number, f"{number} {service} run", up)
    return running()


def unique_bytes(container: str) -> int:
    """Memory that the process of gemps has to itself."""
    return int(gemps_process(container).memory_full_info().uss)


def times(log: str, what: str) -> list[float]:
    """When the server logged lines with `what`, in seconds since 1970."""
    stamp = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) ")
    found = [stamp.match(line) for line in log.splitlines() if what in line]
    return [datetime.fromisoformat(f"{one[1]}.{one[2]}+00:00").timestamp() for one in found if one]
