"""One run: a contender trains a workload in a world until the target."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils import vector_to_parameters

from time_to_loss.contenders import SERVER_PORT, Contender
from time_to_loss.worker_context import GO, READY, SNAPSHOTS
from time_to_loss.workload import WORKLOADS
from time_to_loss.worlds import SHARE, WORKERS, Host, World, made

BENCHMARKS = Path(__file__).resolve().parents[1]
START_SECONDS = 180.0
FIRST_FAILURE, FAILURE_EVERY, ABSENT_SECONDS = 10.0, 60.0, 20.0
POLL_SECONDS = 0.2


@dataclass
class Outcome:
    """seconds: until the target; None: not reached (`why`). curve: seconds, held-out loss. sent: bytes of all hosts."""

    world: str
    contender: str
    workload: str
    rate: float
    seed: int
    seconds: float | None = None
    why: str = ""
    sent: int = 0
    failures: int = 0
    curve: list[tuple[float, float]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Fields."""
        return asdict(self)


def run(contender: Contender, world: World, workload: str, rate: float, seed: int, limit: float) -> Outcome:
    """Train for `limit` seconds at most."""
    outcome = Outcome(world.name, contender.name, workload, rate, seed)
    with tempfile.TemporaryDirectory(prefix="gemps-time-") as name, made(world) as hosts:
        folder = Path(name)
        for part in (READY, SNAPSHOTS):
            (folder / part).mkdir()
        _Run(contender, world, hosts, folder, outcome).until_target(limit)
    return outcome


class _Run:
    def __init__(
        self, contender: Contender, world: World, hosts: Sequence[Host], folder: Path, outcome: Outcome
    ) -> None:
        self._contender = contender
        self._world = world
        self._server, *self._hosts = hosts
        self._folder = folder
        self._outcome = outcome
        self._workload = WORKLOADS[outcome.workload]
        self._model = self._workload.model(0)
        self._absent: dict[int, float] = {}  # worker -> when it starts again
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._went = 0.0

    def until_target(self, limit: float) -> None:
        """Start all, and watch."""
        with ExitStack() as stack:
            stack.callback(self._reap)
            self._serving = self._start(
                self._server, self._contender.server(self._server, self._outcome.rate), "server", {}
            )
            for number in range(WORKERS):
                self._start_worker(number)
            if not self._all_ready():
                return
            self._server.limit(SHARE)
            for number, host in enumerate(self._hosts):
                host.limit(self._world.share(number))
            before = self._bytes()
            self._went = time.monotonic()
            (self._folder / GO).touch()
            while (now := time.monotonic() - self._went) < limit and not self._outcome.why:
                self._fail_and_restart(now)
                self._check()
                if self._evaluate():
                    break
                time.sleep(POLL_SECONDS)
            else:
                self._outcome.why = self._outcome.why or f"not within {limit:g} s"
            self._outcome.sent = self._bytes() - before

    def _start(self, host: Host, arguments: list[str], name: str, more: dict[str, str]) -> "subprocess.Popen[bytes]":
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(BENCHMARKS), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "eth0",
            "TTL_SERVER": f"{self._server.address}:{SERVER_PORT}",
            "TTL_WORKERS": f"{WORKERS}",
            "TTL_RATE": f"{self._outcome.rate}",
            "TTL_SEED": f"{self._outcome.seed}",
            "TTL_FOLDER": str(self._folder),
            "TTL_WORKLOAD": self._outcome.workload,
            **more,
        }
        with (self._folder / f"{name}.log").open("ab") as log:
            command = [*host.within, sys.executable, *arguments]
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)

    def _start_worker(self, number: int) -> None:
        host = self._hosts[number]
        arguments = self._contender.worker(self._world, self._server, host)
        self._workers[number] = self._start(host, arguments, f"worker-{number}", {"TTL_RANK": f"{number}"})

    def _all_ready(self) -> bool:
        deadline = time.monotonic() + START_SECONDS
        while len(list((self._folder / READY).iterdir())) < WORKERS:
            self._check()
            if time.monotonic() > deadline:
                self._outcome.why = f"not ready within {START_SECONDS:g} s: {self._logs()}"
            if self._outcome.why:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _fail_and_restart(self, now: float) -> None:
        if not self._world.failures:
            return
        if now >= FIRST_FAILURE + FAILURE_EVERY * self._outcome.failures:
            number = self._outcome.failures % WORKERS
            self._hosts[number].kill()
            self._workers[number].wait()
            self._absent[number] = now + ABSENT_SECONDS
            self._outcome.failures += 1
        for number, until in list(self._absent.items()):
            if now >= until:
                del self._absent[number]
                self._start_worker(number)

    def _check(self) -> None:
        processes = {f"worker {number}": one for number, one in self._workers.items() if number not in self._absent}
        for name, process in {**processes, "the server": self._serving}.items():
            if (code := process.poll()) is not None:
                self._outcome.why = f"{name} ended with {code}: {self._logs()}"

    def _evaluate(self) -> bool:
        """Evaluate new snapshots; whether one has reached the target."""
        for path in sorted(
            (self._folder / SNAPSHOTS).glob("*.npy"), key=lambda path: float(path.name.partition("-")[0])
        ):
            seconds = float(path.name.partition("-")[0]) - self._went
            vector_to_parameters(torch.from_numpy(np.load(path)), self._model.parameters())
            path.unlink()
            loss = self._workload.held_out_loss(self._model)
            self._outcome.curve.append((round(seconds, 2), round(loss, 4)))
            if loss <= self._workload.target:
                self._outcome.seconds = seconds
                return True
        return False

    def _bytes(self) -> int:
        return sum(host.bytes_sent() for host in (self._server, *self._hosts))

    def _logs(self) -> str:
        logs = sorted(self._folder.glob("*.log"))
        return " | ".join(f"{path.stem}: {path.read_text(errors='replace')[-1500:]}" for path in logs)

    def _reap(self) -> None:
        for host in (self._server, *self._hosts):
            host.kill()
        for process in (*self._workers.values(), self._serving):
            process.wait()
