"""Shards as processes, restarted when they end; workers that count what was acknowledged."""

import random
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from gem_worker.client import Client, ClientSettings, RunFinishedError
from numpy.typing import NDArray

from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec
from gem_core.payload import PayloadFormat
from gem_core.wire_types import WireType
from tests.shards.group import free_port
from tests.waiting import eventually

WORKERS = 3
# Element j counts the commits of worker j % WORKERS. Pieces travel in chunks.
MODEL = Layout([TensorSpec("counts", (WORKERS * 40_000,), ElementType.FLOAT32, TensorKind.PARAMETER)])
BYTES = PayloadFormat(MODEL, WireType.FLOAT32).byte_count
DEADLINE_SECONDS = 120.0
# Several commits.
LONGEST_PAUSE_SECONDS = 0.05


class SupervisedShards:
    """A supervisor's loop: every shard that fails is started again, with --resume. {shard} in a setting: its number.

    With a count of 1 it is a server that holds the whole model.
    """

    def __init__(self, count: int, folder: Path, *settings: str) -> None:
        self.count = count
        self.address = f"127.0.0.1:{free_port()}"
        self.starts = [0] * count
        self._folder = folder
        self._settings = settings
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * count
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._supervise)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        for process in self._processes:
            if process is not None:
                process.terminate()
        for process in self._processes:
            if process is not None:
                process.wait(DEADLINE_SECONDS)

    def data_dir(self, index: int) -> Path:
        return self._folder / f"shard-{index}"

    def log(self, index: int) -> str:
        return (self._folder / f"shard-{index}.log").read_text(encoding="utf-8", errors="replace")

    def pause(self, seconds: float) -> None:
        self._ended.wait(seconds)

    def kill(self, index: int, after: float) -> None:
        """Kill a shard after some seconds."""
        self.pause(after)
        process = self._processes[index]
        if process is not None:
            process.kill()

    def _supervise(self) -> None:
        while not self._ended.wait(0.02):
            for index, process in enumerate(self._processes):
                if process is None or process.poll() is not None:
                    self._start(index)

    def _start(self, index: int) -> None:
        self.starts[index] += 1
        place = ["--bind", self.address] if index == 0 else ["--bind", "127.0.0.1:0", "--primary", self.address]
        command = [
            *(sys.executable, "-m", "gem_cli", "serve", "--rule", "downpour", "--set=limits.threads=1", "--resume"),
            *(("--shard", f"{index}/{self.count}") if self.count > 1 else ()),
            *("--data-dir", str(self.data_dir(index)), *place),
            *(setting.format(shard=index) for setting in self._settings),
        ]
        with (self._folder / f"shard-{index}.log").open("ab") as log:
            self._processes[index] = subprocess.Popen(command, stdout=log, stderr=log)


class CountingWorker(threading.Thread):
    """Adds 1 to its elements with each commit; `applied` and `dropped` count outcomes."""

    def __init__(self, address: str, number: int) -> None:
        super().__init__(name=f"worker-{number}")
        self._address = address
        self._number = number
        self.applied = 0
        self.dropped = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        settings = ClientSettings(backoff_first=0.02, backoff_limit=0.2, connect_timeout=DEADLINE_SECONDS)
        values = np.zeros(MODEL.parameter_count, np.float32)
        values[self._number :: WORKERS] = 1
        into = memoryview(bytearray(BYTES))
        try:
            with Client(self._address, worker_name=self.name, layout=MODEL, settings=settings) as client:
                if not client.join().has_parameters:
                    client.initialize(memoryview(bytes(BYTES)))
                client.pull(into)
                while not self._commit(client, memoryview(values.tobytes()), into):
                    pass
        except BaseException as error:
            self.error = error

    def _commit(self, client: Client, delta: memoryview, into: memoryview) -> bool:
        try:
            outcome = client.commit(delta, into)
        except RunFinishedError:
            return True
        self.applied += outcome.applied
        self.dropped += not outcome.applied
        return outcome.run_finished


def count_commits(address: str, number: int) -> None:
    """Be a counting worker, until the run is finished."""
    worker = CountingWorker(address, number)
    worker.run()
    if worker.error is not None:
        raise worker.error


def counts(parameters: NDArray[np.float32]) -> list[set[float]]:
    """Of each worker, the values of its elements."""
    return [set(parameters[number::WORKERS].tolist()) for number in range(WORKERS)]


def kill_at_random(shards: SupervisedShards, workers: list[CountingWorker], kills: int, seed: int) -> None:
    """Kill random shards while commits are under way."""
    choose = random.Random(seed)
    for _ in range(kills):
        before = [worker.applied for worker in workers]

        def all_go_on(before: list[int] = before) -> bool:
            return all(worker.applied >= seen + 2 for worker, seen in zip(workers, before, strict=True))

        eventually(all_go_on, lambda: [worker.error for worker in workers], patience=DEADLINE_SECONDS)
        shards.kill(choose.randrange(shards.count), choose.random() * LONGEST_PAUSE_SECONDS)
