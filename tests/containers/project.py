"""One compose project of a test: its containers, the processes in them, what they printed, and what they left."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 300.0  # seconds; nothing is measured by it

# What decides how images are built and where the engine is stays; a user's own settings must not decide the tests.
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("GEMPS_")}


def docker(*arguments: str, env: Mapping[str, str] | None = None, timeout: float = PATIENCE) -> str:
    """Run to the end and return what it printed; fails with all of it."""
    done = subprocess.run(
        ["docker", *arguments], env={**CLEAN, **(env or {})}, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, (
        f"docker {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    )
    return done.stdout.strip()


def pause(container: str) -> None:
    """Pause it. The kernel may take longer to freeze a busy container than Docker waits: then once more."""

    def is_paused() -> bool:
        try:
            docker("pause", container)
        except AssertionError as error:
            if "unable to freeze" not in str(error):
                raise
            return False
        return True

    eventually(is_paused, lambda: f"{container} was never frozen", interval=0.5)


class Project:
    """`docker compose` for the files of this checkout, under a name of the test's own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._files: tuple[str, ...] = ("docker-compose.yml",)
        self._env: dict[str, str] = {}

    def compose(self, *arguments: str, timeout: float = PATIENCE) -> str:
        return docker(*self._compose(), *arguments, env=self._env, timeout=timeout)

    @contextmanager
    def up(
        self, *arguments: str, files: tuple[str, ...] = ("docker-compose.yml",), **env: object
    ) -> Iterator[subprocess.Popen[str]]:
        """`docker compose up` attached, while the test runs, on free ports of the machine."""
        self._files = files
        self._env = {"GEMPS_PORT": "0", "GEMPS_LANE_PORT": "0"} | {name: str(value) for name, value in env.items()}
        process = subprocess.Popen(
            ["docker", *self._compose(), "up", *arguments],
            env=CLEAN | self._env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def remove(self) -> None:
        """Containers, network and volumes; also after a test that failed in the middle."""
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "1")

    def containers(self, service: str) -> list[str]:
        """Ids of a service's containers, running or not, in order of their numbers."""
        ids = self.compose("ps", "--all", "--quiet", service).split()
        return sorted(ids, key=lambda one: str(inspect(one)["Name"]))

    def exit_codes(self) -> dict[str, int]:
        """Of every container of the project that has ended, by name; fails where one still runs."""
        states = {
            found["Name"]: found["State"] for found in map(inspect, self.compose("ps", "--all", "--quiet").split())
        }
        assert not [name for name, state in states.items() if state["Running"]]
        return {name.strip("/"): state["ExitCode"] for name, state in states.items()}

    def status(self) -> dict[str, Any]:
        """What the server says of the run."""
        found: dict[str, Any] = json.loads(self.compose("exec", "-T", "server", "gemps", "status", "--json"))
        return found

    def commits(self) -> dict[str, int]:
        """Applied commits of each worker, by the host name of its container."""
        return {worker["name"]: int(worker["commits"]) for worker in self.status()["workers"]}

    def finish(self) -> None:
        """End the run as an operator does, when the test has seen what it is for: the containers end with it."""
        command = ("gemps", "finish", "server:50051", "--reason", "the test has seen enough")
        self.compose("run", "--rm", "--no-deps", "-T", "worker", *command)

    def state(self, folder: Path, service: str = "server") -> tuple[dict[str, Any], Path]:
        """(state.json, model.safetensors) of the newest checkpoint on the volume, copied out as the docs say."""
        model = folder / "model.safetensors"
        self.compose("cp", f"{service}:/data/latest/model.safetensors", str(model))
        self.compose("cp", f"{service}:/data/latest/state.json", str(folder / "state.json"))
        return json.loads((folder / "state.json").read_text(encoding="utf-8")), model

    def _compose(self) -> list[str]:
        files = [argument for file in self._files for argument in ("--file", str(ROOT / file))]
        return ["compose", "--project-directory", str(ROOT), "--project-name", self.name, *files]


def inspect(container: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(docker("inspect", container))[0]
    return found


def host_name(container: str) -> str:
    """The name its worker goes by."""
    return str(inspect(container)["Config"]["Hostname"])


def logs(container: str) -> str:
    """All it has printed, over its restarts, stdout and stderr."""
    done = subprocess.run(["docker", "logs", container], env=CLEAN, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def json_lines(container: str) -> list[dict[str, Any]]:
    """What a worker told with --log-format json."""
    return [json.loads(line) for line in logs(container).splitlines() if line.startswith("{")]


def gemps_process(container: str) -> psutil.Process:
    """The process of gemps in a container, as this machine sees it: the child of the container's init."""
    (child,) = psutil.Process(inspect(container)["State"]["Pid"]).children()
    return child


def wait_until(condition: Callable[[], bool], what: str, process: subprocess.Popen[str] | None = None) -> None:
    """Ask again and again; fails when it never comes true, or `process` ends before."""

    def look() -> bool:
        assert process is None or process.poll() is None, f"compose ended with {process.returncode} before {what}"
        return condition()

    eventually(look, lambda: f"never happened: {what}", patience=PATIENCE, interval=0.5)
