"""The processes of one run, on their hosts: started, killed, started again."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from benchmarks.time_to_loss.contenders import SERVER_PORT, Contender
from benchmarks.time_to_loss.failures import Failure
from benchmarks.time_to_loss.worker_context import GO, READY, SNAPSHOTS
from benchmarks.time_to_loss.worlds import Host, World

REPOSITORY = Path(__file__).resolve().parents[2]
# For interpreters of other environments, too.
SOURCES = [one for one in sys.path if Path(one).is_relative_to(REPOSITORY) and "site-packages" not in one]
START_SECONDS = 180.0
POLL_SECONDS = 0.2


class Fleet:
    """`why`: the run cannot go on; empty while it can. failed: hosts so far."""

    def __init__(
        self, contender: Contender, world: World, hosts: Sequence[Host], folder: Path, settings: Mapping[str, str]
    ) -> None:
        self._contender = contender
        self._world = world
        self._hosts = hosts
        self._folder = folder
        self._rate = float(settings["RATE"])
        self._settings = settings
        self._absent: dict[int, float] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._next: Failure | None = None
        self._went = 0.0
        self.failed = 0
        self.why = ""

    @contextmanager
    def running(self, failures: Iterator[Failure]) -> Iterator[Self]:
        """Start all hosts; let training begin when all are ready, and limit them from then on."""
        self._failures = failures
        for part in (READY, SNAPSHOTS):
            (self._folder / part).mkdir()
        try:
            for number in range(len(self._hosts)):
                self._start(number)
            self._wait_ready()
            for number, host in enumerate(self._hosts):
                if (share := self._world.share(number)) is not None:
                    host.limit(share)
            self._next = next(failures, None)
            self._went = time.monotonic()
            (self._folder / GO).touch()
            yield self
        finally:
            for host in self._hosts:
                host.kill()
            for process in self._processes.values():
                process.wait()

    @property
    def seconds(self) -> float:
        """Since training began."""
        return time.monotonic() - self._went

    def snapshots(self) -> list[tuple[float, int, Path]]:
        """Seconds at which each was taken, its count of steps, its file; in order."""
        found = []
        for path in (self._folder / SNAPSHOTS).glob("*.npy"):
            taken, _, step = path.stem.partition("-")
            found.append((float(taken) - self._went, int(step), path))
        return sorted(found)

    def poll(self) -> None:
        """Kill and start what is due; where hosts fail, also start what ended by itself."""
        time.sleep(POLL_SECONDS)
        self._check()
        if self._next is not None and self.seconds >= self._next.seconds:
            failure, self._next = self._next, next(self._failures, None)
            if failure.number not in self._absent:
                self._hosts[failure.number].kill()
                self._processes[failure.number].wait()
                self._absent[failure.number] = self.seconds + failure.absent
                self.failed += 1
        for number, until in list(self._absent.items()):
            if self.seconds >= until:
                del self._absent[number]
                self._start(number)

    def bytes_sent(self) -> int:
        """Of all hosts."""
        return sum(host.bytes_sent() for host in self._hosts)

    def _start(self, number: int) -> None:
        server, host = self._hosts[0], self._hosts[number]
        if number == 0:
            arguments = self._contender.server(host, self._rate, self._folder)
        else:
            arguments = self._contender.worker(self._world, server, host, self._folder)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(SOURCES),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "eth0",
            "TP_SOCKET_IFNAME": "eth0",
            # Else torchrun hangs when a host joins again (pytorch/pytorch issue 135712).
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "TTL_SERVER": f"{server.address}:{SERVER_PORT}",
            "TTL_RANK": f"{number - 1}",
            "TTL_FOLDER": str(self._folder),
            **{f"TTL_{name}": value for name, value in self._settings.items()},
        }
        with (self._folder / f"{_name(number)}.log").open("ab") as log:
            self._processes[number] = subprocess.Popen(
                [*host.within, str(self._contender.interpreter), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self.why and len(list((self._folder / READY).iterdir())) < len(self._hosts) - 1:
            self._check()
            if time.monotonic() > deadline:
                self.why = f"not ready within {START_SECONDS:g} s: {self._logs()}"
            time.sleep(POLL_SECONDS)

    def _check(self) -> None:
        for number, process in self._processes.items():
            if number not in self._absent and (code := process.poll()) is not None:
                if self._went and self._next is not None:
                    self._hosts[number].kill()
                    self._absent[number] = self.seconds + 1.0
                else:
                    self.why = f"{_name(number)} ended with {code}: {self._logs()}"

    def _logs(self) -> str:
        logs = sorted(self._folder.glob("*.log"))
        return " | ".join(f"{path.stem}: {path.read_text(errors='replace')[-1500:]}" for path in logs)


def _name(number: int) -> str:
    return f"worker-{number - 1}" if number else "server"
