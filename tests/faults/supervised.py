"""A training as people run it: `gemps serve`, and `gemps work` that a supervisor starts again when it dies."""

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil
from gem_worker import evaluate_checkpoint
from gem_worker.client import Observer
from gem_worker.settings import WorkerSettings

from tests.cli.processes import CLEAN, command, wait_for
from tests.waiting import eventually

RESTART_SECONDS = 1.0
# Importing torch eight times on a busy machine; nothing is measured by it.
START_PATIENCE = 300.0
SAMPLE_SECONDS = 0.5


class Supervised:
    """One worker, which is started again a second after it died, until it exits with 0.

    With a name it is the same worker after each start, as a container or a unit is; without one another each time.
    """

    def __init__(self, folder: Path, number: int, address: str, name: str | None) -> None:
        self._log = folder / f"worker-{number}.log"
        named = () if name is None else ("--worker-name", name)
        self._command = command("work", address, "--device", "cpu", "--log-interval", "60", *named)
        self._name = name
        self._died_at: float | None = None
        self.exit_code: int | None = None
        self._process = self._start()

    @property
    def name(self) -> str:
        """As the server knows it now; without a name of its own, the end of that."""
        return self._name or f"-{self._process.pid}"

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def look(self) -> None:
        """What a supervisor does again and again."""
        if self.exit_code == 0 or self.is_running:
            return
        self.exit_code = self._process.returncode
        if self.exit_code == 0:
            return
        if self._died_at is None:
            self._died_at = time.monotonic()
        elif time.monotonic() - self._died_at >= RESTART_SECONDS:
            self._died_at = None
            self._process = self._start()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def said(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as output:
            return subprocess.Popen(
                self._command, env=CLEAN, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )


@dataclass(frozen=True)
class Sample:
    """What the server's process had at one moment."""

    descriptors: int
    anonymous_bytes: int


class TrainingRun:
    """A server and its workers, in a folder of their own. Half of the workers have names of their own."""

    def __init__(self, folder: Path, workers: int, *options: str) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.samples: list[Sample] = []
        self._sampled_at = 0.0
        self.workers: list[Supervised] = []
        ready, self._log = folder / "ready.json", folder / "server.log"
        told = ("--bind=127.0.0.1:0", f"--ready-file={ready}", f"--data-dir={folder / 'state'}", "--exit-when-finished")
        with self._log.open("wb") as output:
            self._server = subprocess.Popen(
                command("serve", *told, f"--min-workers={workers}", *options),
                env=CLEAN, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        try:
            wait_for(ready.exists, self._server, self._log)
            self._process = psutil.Process(self._server.pid)
            address = json.loads(ready.read_text(encoding="utf-8"))["address"]
            self._observer = Observer(address)
            for number in range(workers):
                name = f"steady-{number}" if number % 2 else None
                self.workers.append(Supervised(folder, number, address, name))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._observer.close()
        self.close()

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
        self._server.kill()
        self._server.wait()

    def look(self) -> None:
        """To be called again and again, as long as it runs: restarts who has died, and measures the server."""
        for worker in self.workers:
            worker.look()
        now = time.monotonic()
        if now - self._sampled_at >= SAMPLE_SECONDS and not self.has_ended:
            self._sampled_at = now
            memory = self._process.memory_info()
            self.samples.append(Sample(self._process.num_fds(), memory.rss - memory.shared))

    @property
    def has_ended(self) -> bool:
        return self._server.poll() is not None

    @property
    def said(self) -> str:
        """The server's log."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def commits_of_each(self) -> list[int]:
        """Of the workers as they run now; 0 for one that has just been started."""
        known = {str(worker["name"]): int(worker["commits"]) for worker in self._observer.get_status()["workers"]}
        return [
            max((commits for name, commits in known.items() if name.endswith(worker.name)), default=0)
            for worker in self.workers
        ]

    def finish(self) -> None:
        """End the run as an operator does."""
        self._observer.control("finish", "the test has seen enough")

    def exit_codes(self) -> list[int | None]:
        """Of the server and the workers, once they have ended."""
        look_until(lambda: self.has_ended and all(worker.exit_code == 0 for worker in self.workers), self)
        return [self._server.returncode, *(worker.exit_code for worker in self.workers)]

    def ledger_commits(self) -> tuple[int, int]:
        """Of the last checkpoint: the commits of the run, and the sum over its workers."""
        state = json.loads((self.folder / "state/latest/state.json").read_text(encoding="utf-8"))
        return state["commits"], sum(worker["commits"] for worker in state["workers"])

    def accuracy(self) -> float:
        """On digits that nobody trained on, of the last checkpoint."""
        return evaluate_checkpoint(self.folder / "state/latest/model.safetensors", WorkerSettings()).accuracy


def look_until(condition: Callable[[], bool], *trainings: TrainingRun, patience: float = START_PATIENCE) -> None:
    """Supervise until it holds; fails when it never does."""

    def look() -> bool:
        for training in trainings:
            training.look()
        return condition()

    def explain() -> str:
        return "\n".join(one.said[-2000:] for t in trainings for one in (t, *t.workers))

    eventually(look, explain, patience=patience, interval=0.1)


def look_for(seconds: float, *trainings: TrainingRun) -> None:
    """Supervise for so long."""
    ends_at = time.monotonic() + seconds
    look_until(lambda: time.monotonic() >= ends_at, *trainings, patience=seconds + START_PATIENCE)
