"""A Ray cluster of two nodes on this machine's loopback addresses."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from tests.docs.blocks import blocks_of
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/engines/ray.md"
HEAD = "127.0.0.2"
OTHER = "127.0.0.3"
NODE = "--block --num-gpus 0 --object-store-memory 100000000"
START_SECONDS = 300.0  # several processes of PyTorch on a busy machine; nothing is measured by it


def printed(beginning: str) -> str:
    """The one command of the page that begins like this."""
    commands = [one.text for block in blocks_of(PAGE) if block.shell for one in block.commands]
    (found,) = [one for one in commands if one.startswith(beginning)]
    return found


@dataclass(frozen=True)
class Actor:
    """An actor that lives."""

    name: str
    id: str
    pid: int
    program: int  # the process that it runs


class Program:
    """A command in a shell; its output is in a file."""

    def __init__(self, command: str, log: Path, environment: dict[str, str], folder: Path) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                cwd=folder,
            )

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, text: str, seconds: float = START_SECONDS) -> str:
        """Return the first line with this text."""

        def look() -> str | None:
            assert self.process.poll() is None, self.text
            return next((line for line in self.text.splitlines() if text in line), None)

        return str(eventually(look, lambda: self.text, patience=seconds))

    def ended(self, seconds: float) -> int:
        """Return the exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it still runs:\n{self.text}")


class RayCluster:
    """Two nodes of 3 processors: four actors need both."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        (settings,) = [block.text for block in blocks_of(PAGE) if block.language == "toml"]
        (folder / "run.toml").write_text(settings, encoding="utf-8")
        # Short: Ray puts sockets into it.
        self._temporary = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        self._port, self._dashboard = _free_port(), _free_port()
        self.environment = {
            **os.environ,
            "HOME": str(self.home),
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RAY_ADDRESS": f"{HEAD}:{self._port}",
            "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{self._dashboard}",
            "RAY_DEDUP_LOGS": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        self._programs: list[Program] = []
        self._processes: list[psutil.Process] = []

    def start_nodes(self) -> None:
        """As the page prints it, with what two nodes on one machine need."""
        head = f"{NODE} --node-ip-address {HEAD} --port {self._port} --num-cpus 3 --temp-dir {self._temporary}"
        first = self.start(f"{printed('ray start --head')} {head} {_agent()} --dashboard-port {self._dashboard}")
        first.wait_for("Ray runtime started")
        self.add_node(OTHER, 3)

    def add_node(self, address: str, processors: int) -> Program:
        join = printed("ray start --address").replace("HEAD:6379", f"{HEAD}:{self._port}")
        node = self.start(f"{join} {NODE} {_agent()} --node-ip-address {address} --num-cpus {processors}")
        node.wait_for("Ray runtime started")
        return node

    def start(self, command: str, folder: Path | None = None) -> Program:
        log = self.folder / f"program-{len(self._programs)}.log"
        program = Program(command, log, self.environment, folder or self.folder)
        self._programs.append(program)
        return program

    def output(self, command: str, seconds: float = 120.0) -> str:
        """Return what a command writes, whatever its exit code."""
        done = self.start(command)
        done.ended(seconds)
        return done.text

    def run(self, command: str, seconds: float = 120.0) -> str:
        """Return the output of a command that exits with 0."""
        done = self.start(command)
        code = done.ended(seconds)
        assert code == 0, done.text
        return done.text

    def actors(self) -> dict[str, Actor]:
        """Living actors of gemps with a program, by name."""
        from ray.util.state import list_actors

        filters = [("ray_namespace", "=", "gemps"), ("state", "=", "ALIVE")]
        found = {}
        for row in list_actors(address=self.environment["RAY_API_SERVER_ADDRESS"], filters=filters):
            with contextlib.suppress(psutil.NoSuchProcess, IndexError):
                program = psutil.Process(row.pid).children()[0].pid
                found[row.name] = Actor(row.name, row.actor_id, row.pid, program)
        return found

    def actor(self, ending: str, *, after: Actor | None = None) -> Actor:
        """Wait for the actor whose name ends like this, in another process than `after`."""

        def look() -> list[Actor]:
            return [
                one
                for name, one in self.actors().items()
                if name.endswith(ending) and (not after or one.pid != after.pid)
            ]

        (found,) = eventually(look, lambda: f"no actor {ending}", patience=START_SECONDS)
        return found

    def lose(self, node: Program) -> None:
        """Kill all processes of a node."""
        root = psutil.Process(node.process.pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        node.process.wait(20.0)

    def close(self) -> None:
        """End what was started here, workers of Ray included."""
        running = [one.process for one in self._programs if one.process.poll() is None]
        every = [psutil.Process(one.pid) for one in running]
        every += [child for one in list(every) for child in one.children(recursive=True)]
        for one in running:
            one.send_signal(signal.SIGTERM)
        _, left = psutil.wait_procs(every, timeout=20.0)
        for process in left:
            process.kill()
        for one in running:
            one.wait(20.0)
        shutil.rmtree(self._temporary, ignore_errors=True)


@contextmanager
def ray_cluster(folder: Path) -> Iterator[RayCluster]:
    """A cluster that has started; skips where it cannot."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed in this environment: `make test-all` makes one that has it")
    cluster = RayCluster(folder)
    try:
        cluster.start_nodes()
        yield cluster
    finally:
        cluster.close()


def _agent() -> str:
    """Nodes of one machine would share the port of what answers for logs."""
    return f"--dashboard-agent-listen-port {_free_port()}"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
