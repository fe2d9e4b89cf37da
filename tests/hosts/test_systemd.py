"""The units of deploy/systemd under a real systemd: they start, survive kill -9, stop well, and know when to stay down.

It needs an engine and both images: `python -m pytest -m systemd` after `docker compose build`.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import blocks_of
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.systemd

IMAGE = "gemps-hosts-machine"
PATIENCE = 180.0  # seconds; nothing is measured by it
BEYOND_RESTART_SECONDS = 12.0  # longer than RestartSec=10 of the worker
SERVER, WORKERS = "gemps-server", ("gemps-worker@0", "gemps-worker@1")


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"docker {' '.join(arguments)}:\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


class Machine:
    """A container that systemd runs in."""

    def __init__(self, id_: str) -> None:
        self.id = id_

    def run(self, *command: str) -> str:
        return docker("exec", self.id, *command)

    def is_up(self) -> bool:
        asked = subprocess.run(
            ["docker", "exec", self.id, "systemctl", "is-system-running"], capture_output=True, text=True
        )
        return asked.stdout.strip() in ("running", "degraded")

    def state(self, unit: str, *names: str) -> list[str]:
        """Properties of a unit, as `systemctl show` tells them."""
        told = dict(line.split("=", 1) for line in self.run("systemctl", "show", unit).splitlines() if "=" in line)
        return [told[name] for name in names]

    def log(self, unit: str) -> str:
        return self.run("journalctl", "--no-pager", "--output=cat", "--unit", unit)

    def status(self) -> dict[str, Any]:
        """What the server says of the run."""
        found: dict[str, Any] = json.loads(self.run("/opt/gemps/bin/gemps", "status", "127.0.0.1:50051", "--json"))
        return found

    def workers(self) -> dict[str, dict[str, Any]]:
        return {worker["name"]: worker for worker in self.status()["workers"]}

    def settings(self, name: str, text: str) -> None:
        """Add lines to /etc/gemps/NAME.env: the last one of a name counts."""
        self.run("sh", "-c", f"printf '\\n{text}\\n' >> /etc/gemps/{name}.env")

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        def explain() -> str:
            return f"never: {what}\n{self.run('journalctl', '--no-pager')}"

        eventually(condition, explain, patience=PATIENCE, interval=0.3)

    def wait_until_each_commits(self, more: int) -> None:
        before = {name: int(worker["commits"]) for name, worker in self.workers().items()}

        def moved() -> bool:
            now = self.workers()
            return len(now) == 2 and all(int(one["commits"]) >= before.get(name, 0) + more for name, one in now.items())

        self.wait_until(moved, f"both workers commit {more} times")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    images = {role: os.environ.get(f"{role.upper()}_IMAGE", f"gemps-{role}") for role in ("server", "worker")}
    inspect = ["docker", "image", "inspect", *images.values()]
    if shutil.which("docker") is None or subprocess.run(inspect, capture_output=True).returncode:
        pytest.skip(f"needs a Docker engine with {' and '.join(images.values())}: run `docker compose build`")
    context = tmp_path_factory.mktemp("image")
    fetch_packages(images["worker"], context / "packages")
    shutil.copytree(ROOT / "deploy", context / "deploy")
    dockerfile = str(Path(__file__).with_name("systemd.Dockerfile"))
    arguments = [f"--build-arg={role.upper()}_IMAGE={name}" for role, name in images.items()]
    docker("build", *arguments, "--file", dockerfile, "--tag", IMAGE, str(context))
    yield IMAGE
    docker("image", "rm", IMAGE)


@contextmanager
def booted(image: str) -> Iterator[Machine]:
    for_systemd = ("--privileged", "--cgroupns", "private", "--tmpfs", "/run", "--tmpfs", "/run/lock")
    made = Machine(docker("run", "--detach", "--hostname", "machine", *for_systemd, image))
    try:
        made.wait_until(made.is_up, "systemd is up")
        yield made
    finally:
        docker("rm", "--force", "--volumes", made.id)


@pytest.fixture
def machine(image: str) -> Iterator[Machine]:
    with booted(image) as made:
        yield made


@pytest.fixture
def other_machine(image: str) -> Iterator[Machine]:
    with booted(image) as made:
        yield made


def fetch_packages(image: str, folder: Path) -> None:
    """An image without package sources gets its packages from this machine's, which must be of the same release."""
    (folder / "partial").mkdir(parents=True)
    if docker(
        "run", "--rm", "--entrypoint", "sh", image, "-c", "cat /etc/apt/sources.list /etc/apt/sources.list.d/* || true"
    ):
        return
    status = folder.with_name("status")
    status.write_text(docker("run", "--rm", "--entrypoint", "cat", image, "/var/lib/dpkg/status") + "\n")
    options = [f"Dir::State::status={status}", f"Dir::Cache::archives={folder}", "Debug::NoLocking=1"]
    command = ["apt-get", *(word for one in options for word in ("-o", one))]
    subprocess.run(
        [*command, "install", "--yes", "--download-only", "--no-install-recommends", "systemd"],
        check=True,
        capture_output=True,
    )


def page(on: str, word: str) -> str:
    """The script of docs/deploy.md that installs with systemd on this machine."""
    found = [
        one.text
        for one in blocks_of(ROOT / "docs/deploy.md")
        if one.section == "Under systemd" and one.on == on and word in one.text
    ]
    assert len(found) == 1
    return found[0]


@pytest.mark.timeout(1200)
def test_the_units_start_survive_and_stop_as_the_page_says(machine: Machine) -> None:
    machine.run("bash", "-ec", page("server", "useradd"))
    assert machine.state(SERVER, "ActiveState", "NRestarts") == ["active", "0"]
    assert machine.status()["run_state"] == "RUN_STATE_WAITING"  # it serves: `systemctl start` waited for that
    machine.settings("server", "GEMPS_CHECKPOINT_INTERVAL=2\nGEMPS_COMMITS=1000000")
    machine.run("systemctl", "restart", SERVER)

    machine.run("bash", "-ec", page("worker-1", "useradd").replace("useradd", ": useradd"))  # here it is one machine
    machine.settings("worker", "GEMPS_SERVER=127.0.0.1:50051")
    machine.run("systemctl", "restart", *WORKERS)
    machine.wait_until(lambda: len(machine.workers()) == 2, "both workers have joined")
    machine.wait_until_each_commits(50)
    assert machine.workers().keys() == {"machine-0", "machine-1"}

    the_server_is_killed(machine)
    a_worker_is_killed(machine)
    the_server_is_stopped_and_started(machine)
    workers_are_stopped(machine)
    the_run_is_finished(machine)
    settings_are_wrong(machine)


@pytest.mark.timeout(1200)
def test_servers_of_two_machines_hold_one_model(machine: Machine, other_machine: Machine) -> None:
    address = docker("inspect", "--format", "{{.NetworkSettings.IPAddress}}", machine.id)
    shards = {machine: "GEMPS_SHARD=0/2", other_machine: f"GEMPS_SHARD=1/2\nGEMPS_PRIMARY={address}:50051"}
    for one, lines in shards.items():
        one.run("bash", "-ec", page("server", "useradd").replace("--now", ""))
        one.settings("server", f"{lines}\nGEMPS_COMMITS=1000000")
        one.run("systemctl", "start", "--no-block", SERVER)
    machine.run("bash", "-ec", page("worker-1", "useradd").replace("useradd", ": useradd"))
    machine.settings("worker", "GEMPS_SERVER=127.0.0.1:50051")
    machine.run("systemctl", "restart", *WORKERS)
    machine.wait_until(lambda: machine.state(SERVER, "ActiveState") == ["active"], "the first server is ready")
    machine.wait_until(lambda: len(machine.workers()) == 2, "both workers have joined")
    machine.wait_until_each_commits(20)
    other_machine.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", SERVER)
    for one in shards:
        one.wait_until(lambda one=one: one.log(SERVER).count("serving on") == 2, "it is back")  # type: ignore[misc]
    machine.wait_until(lambda: len(machine.workers()) == 2, "both workers are back")
    machine.wait_until_each_commits(20)


def the_server_is_killed(machine: Machine) -> None:
    machine.wait_until(lambda: "checkpoint of clock" in machine.log(SERVER), "a checkpoint")
    machine.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", SERVER)
    machine.wait_until(lambda: machine.state(SERVER, "ActiveState", "NRestarts") == ["active", "1"], "it is back")
    assert "resuming at clock" in machine.log(SERVER)
    machine.wait_until(lambda: len(machine.workers()) == 2, "both workers are back")
    machine.wait_until_each_commits(50)
    assert [machine.state(worker, "NRestarts") for worker in WORKERS] == [["0"], ["0"]]


def a_worker_is_killed(machine: Machine) -> None:
    rank = machine.workers()["machine-1"]["rank"]
    machine.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", "gemps-worker@1")
    machine.wait_until(
        lambda: machine.state("gemps-worker@1", "ActiveState", "NRestarts") == ["active", "1"], "it is back"
    )
    machine.wait_until_each_commits(50)
    assert machine.workers()["machine-1"]["rank"] == rank


def the_server_is_stopped_and_started(machine: Machine) -> None:
    machine.run("systemctl", "stop", SERVER)
    assert machine.state(SERVER, "Result", "ExecMainStatus", "ActiveState") == ["success", "0", "inactive"]
    clock = machine.log(SERVER).rpartition("stopped at clock ")[2].split()[0]
    state = "/var/lib/gemps-server/state"
    assert json.loads(machine.run("cat", f"{state}/latest/state.json"))["clock"] == int(clock)
    owners = machine.run("find", f"{state}/", "-type", "f", "-printf", "%u %m\n")
    assert set(owners.splitlines()) == {"gemps 600"}
    assert machine.run("stat", "--format=%U %a", "/var/lib/gemps-server") == "gemps 700"
    machine.run("systemctl", "start", SERVER)
    assert f"resuming at clock {clock}" in machine.log(SERVER)
    machine.wait_until(lambda: len(machine.workers()) == 2, "both workers are back")
    machine.wait_until_each_commits(50)


def workers_are_stopped(machine: Machine) -> None:
    machine.run("systemctl", "stop", *WORKERS)
    for worker in WORKERS:
        assert machine.state(worker, "Result", "ExecMainStatus", "ActiveState") == ["success", "0", "inactive"]
    assert {worker["state"] for worker in machine.workers().values()} == {"WORKER_STATE_LEFT"}


def the_run_is_finished(machine: Machine) -> None:
    budget = machine.status()["commits"] + 500
    machine.settings("server", f"GEMPS_COMMITS={budget}")
    machine.run("systemctl", "restart", SERVER)
    machine.run("systemctl", "start", *WORKERS)
    how = ("Result", "ExecMainStatus", "ActiveState")
    ended = [["success", "0", "inactive"]] * 2
    machine.wait_until(lambda: [machine.state(worker, *how) for worker in WORKERS] == ended, "both workers have ended")
    assert all("ended: the run is finished" in machine.log(worker) for worker in WORKERS)
    assert machine.state(SERVER, "ActiveState") == ["active"]
    assert machine.status()["commits"] == budget


def settings_are_wrong(machine: Machine) -> None:
    machine.settings("server", "GEMPS_INSECURE=false")
    started = subprocess.run(["docker", "exec", machine.id, "systemctl", "restart", SERVER], capture_output=True)
    assert started.returncode != 0
    machine.settings("worker", "GEMPS_BATCH_SIZE=0")
    machine.run("systemctl", "start", "gemps-worker@0")
    machine.wait_until(lambda: machine.state("gemps-worker@0", "ActiveState") == ["failed"], "it fails")
    time.sleep(BEYOND_RESTART_SECONDS)  # it is not started again
    for unit in (SERVER, "gemps-worker@0"):
        assert machine.state(unit, "Result", "ExecMainStatus", "ActiveState") == ["exit-code", "2", "failed"]
    assert "bind 0.0.0.0:50051 is beyond loopback" in machine.log(SERVER)
    assert "GEMPS_BATCH_SIZE=0" in machine.log("gemps-worker@0")
