"""Workers get SIGTERM while they train, as engines send it, and come back under their names.

benchmarks/preemption.py has the long form.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from gem_worker.client import Observer

from tests.cli.processes import CLEAN, PATIENCE, command, served
from tests.figures import Figures
from tests.waiting import eventually

WORKERS = ("worker-0", "worker-1")
TERMINATIONS = 2
GRACE = 30.0  # seconds, as in Kubernetes


class Engine:
    """Starts `gemps work` processes, and keeps what each has logged."""

    def __init__(self, folder: Path, address: str) -> None:
        self._folder = folder
        self._address = address
        self.started: list[tuple[str, subprocess.Popen[bytes], Path]] = []

    def start(self, name: str) -> subprocess.Popen[bytes]:
        log = self._folder / f"{len(self.started)}.log"
        work = command("work", self._address, "--device=cpu", f"--worker-name={name}", "--log-format=json")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*work, "--log-interval=0"],
                env=CLEAN,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        self.started.append((name, process, log))
        return process

    def lines(self, log: Path, event: str) -> list[dict[str, Any]]:
        text = log.read_text(encoding="utf-8")
        assert "Traceback" not in text, text
        whole = text[: text.rfind("\n") + 1]
        return [line for line in map(json.loads, whole.splitlines()) if line["event"] == event]

    def trains(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether it has a commit; fails when it has ended."""
        log = next(log for _, one, log in self.started if one is process)
        assert process.poll() is None, log.read_text(encoding="utf-8")
        return bool(self.lines(log, "training"))

    def close(self) -> None:
        for _, process, _ in self.started:
            process.kill()
            process.wait()


@contextmanager
def engine_for(folder: Path, address: str) -> Iterator[Engine]:
    engine = Engine(folder, address)
    try:
        yield engine
    finally:
        engine.close()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_terminated_workers_exit_with_0_and_no_acknowledged_commit_is_lost(tmp_path: Path, figures: Figures) -> None:
    with (
        served(tmp_path, f"--data-dir={tmp_path / 'state'}", f"--min-workers={len(WORKERS)}") as (address, _),
        engine_for(tmp_path, address) as engine,
        Observer(address) as observer,
    ):
        running = {name: engine.start(name) for name in WORKERS}
        for number in range(TERMINATIONS):
            eventually(lambda: all(map(engine.trains, running.values())), patience=PATIENCE, interval=0.1)
            name = WORKERS[number % len(WORKERS)]
            old = running[name]
            old.terminate()
            running[name] = engine.start(name)
            assert old.wait(GRACE) == 0
        eventually(lambda: all(map(engine.trains, running.values())), patience=PATIENCE, interval=0.1)
        observer.control("finish", "the test has seen enough")
        assert [process.wait(PATIENCE) for process in running.values()] == [0, 0]
        late = engine.start("late")
        assert late.wait(PATIENCE) == 0  # the run is finished
        ledger = {one["name"]: one for one in observer.get_status()["workers"]}

        endings = [engine.lines(log, "ended")[-1]["message"] for _, _, log in engine.started]
        assert sorted(endings) == ["terminated"] * TERMINATIONS + ["the run is finished"] * 3
        clocks: list[int] = []
        for name in WORKERS:
            logs = [log for one, _, log in engine.started if one == name]
            applied = [line for log in logs for line in engine.lines(log, "training") if line["applied"]]
            clocks += [line["clock"] for line in applied]
            # Commits that were dropped at the end of their time may have been applied.
            assert 0 <= int(ledger[name]["commits"]) - len(applied) <= len(logs) - 1
            ranks = {line["rank"] for log in logs for line in engine.lines(log, "joined")}
            assert ranks == {ledger[name]["rank"]}
            assert int(ledger[name]["sessions"]) == len(logs)
        assert len(clocks) == len(set(clocks)), "a commit was applied twice"
        assert int(ledger["late"]["commits"]) == 0
    commits = sum(int(one["commits"]) for one in ledger.values())
    figures(
        f"SIGTERM to workers, {TERMINATIONS} times",
        f"exit codes 0; {commits} commits, {len(clocks)} acknowledged, each once",
    )
