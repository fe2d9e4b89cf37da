"""What preemption costs: SIGTERM to one worker every 20 s, with 10 s of grace, for 5 minutes.

Two runs side by side, so that other load meets both: in one, workers get SIGTERM in turn, and a new process under the
same name starts at once, as a Job's or a Deployment's does. In the other they stay. A step takes 0.1 s of waiting, as
for a GPU: on a cluster a process that starts takes no time from the other workers, but on one machine it would. What
is lost is then the time in which a worker is absent, mostly for importing PyTorch.

Fails with exit code 1 unless: the commits are at least 0.95 of those of the other run, all exit codes are 0, and the
ledger has every commit that a worker got a reply to, once.

    python -m benchmarks.preemption [--workers 8] [--seconds 300] [--every 20] [--grace 10]
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gem_worker.client import Observer

LEAST_RATIO = 0.95
STEP_SECONDS = 0.1
START_SECONDS = 600.0
POLL_SECONDS = 0.05

# A line for each applied commit: its clock.
WORKER = """
import sys, time
import torch
from gem_worker import ParameterServer

torch.set_num_threads(1)
model = torch.nn.Linear(64, 10)
with ParameterServer(model=model) as ps:
    print("joined", flush=True)
    while True:
        loss = model(torch.randn(16, 64)).square().mean()
        loss.backward()
        time.sleep(float(sys.argv[1]))
        before = ps.last_report
        try:
            ps.step(loss, samples=16)
        finally:
            report = ps.last_report
            if report is not before and report.applied and report.verdict is not None:
                print(report.verdict.version.clock, flush=True)
"""


@dataclass
class Worker:
    """A process under a name."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def clocks(self) -> list[int]:
        """Of the commits that it got a reply to."""
        text = self.log.read_text(encoding="utf-8")
        return [int(line) for line in text[: text.rfind("\n") + 1].splitlines() if line.isdecimal()]


@dataclass
class Run:
    """A server and its workers."""

    folder: Path
    server: subprocess.Popen[bytes]
    address: str
    observer: Observer
    running: dict[str, Worker] = field(default_factory=dict)
    ended: list[Worker] = field(default_factory=list)

    def start(self, name: str) -> None:
        """Start a worker, perhaps in place of one that ends."""
        old = self.running.get(name)
        if old is not None:
            self.ended.append(old)
        log = self.folder / f"{name}-{len(self.ended)}.log"
        environment = {**os.environ, "GEMPS_SERVER": self.address, "GEMPS_WORKER_NAME": name, "OMP_NUM_THREADS": "1"}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", WORKER, str(STEP_SECONDS)], stdout=output, stderr=output, env=environment
            )
        self.running[name] = Worker(name, process, log)

    def ledger(self) -> dict[str, dict[str, Any]]:
        """What the server knows of each worker."""
        return {one["name"]: one for one in self.observer.get_status()["workers"]}

    def commits(self) -> int:
        """Of the run."""
        return int(self.observer.get_status()["commits"])

    def check_running(self) -> None:
        """End the whole thing when a worker ended that should not."""
        for worker in self.running.values():
            if worker.process.poll() is not None:
                sys.exit(f"{worker.name} ended with {worker.process.returncode}: {worker.log.read_text()[-2000:]}")

    def finish(self) -> list[int]:
        """Exit codes of the workers that ran until the end."""
        self.observer.control("finish", "measured")
        return [worker.process.wait(60) for worker in self.running.values()]

    def close(self) -> None:
        """End what runs."""
        self.observer.close()
        for worker in [*self.running.values(), *self.ended]:
            worker.process.kill()
            worker.process.wait()
        self.server.terminate()
        self.server.wait(60)


@contextlib.contextmanager
def started(folder: Path, workers: int) -> Iterator[Run]:
    """A run whose workers all commit."""
    folder.mkdir()
    ready = folder / "ready.json"
    serve = ["serve", "--bind=127.0.0.1:0", f"--ready-file={ready}", f"--min-workers={workers}", "--eta=1e-6"]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen([sys.executable, "-m", "gem_cli", *serve], stdout=log, stderr=log)
    deadline = time.monotonic() + START_SECONDS
    while not ready.exists():
        if server.poll() is not None or time.monotonic() > deadline:
            sys.exit((folder / "server.log").read_text(encoding="utf-8"))
        time.sleep(POLL_SECONDS)
    address = json.loads(ready.read_text(encoding="utf-8"))["address"]
    run = Run(folder, server, address, Observer(address))
    try:
        for number in range(workers):
            run.start(f"worker-{number}")
        yield run
    finally:
        run.close()


def wait_for_commits(runs: list[Run]) -> None:
    """Return when all workers commit."""
    deadline = time.monotonic() + START_SECONDS
    while not all(worker.clocks() for run in runs for worker in run.running.values()):
        for run in runs:
            run.check_running()
        if time.monotonic() > deadline:
            sys.exit("the workers do not start")
        time.sleep(POLL_SECONDS)


@dataclass
class Preemption:
    """SIGTERM to one worker, and a new process in its place."""

    old: subprocess.Popen[bytes]
    new: Worker
    began: float
    code: int | None = None
    leaving: float = 0.0
    absent: float = 0.0

    def poll(self, grace: float) -> None:
        """See how far it is."""
        seconds = time.monotonic() - self.began
        if self.code is None and seconds > grace:
            self.old.kill()
            self.old.wait()
        if self.code is None and self.old.poll() is not None:
            self.code, self.leaving = self.old.returncode, seconds
        if not self.absent and self.new.clocks():
            self.absent = seconds


def preempt(run: Run, name: str) -> Preemption:
    """Begin one."""
    old, began = run.running[name].process, time.monotonic()
    old.terminate()
    run.start(name)
    return Preemption(old, run.running[name], began)


def main() -> None:
    """Run, print the figures, and judge them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--every", type=float, default=20.0)
    parser.add_argument("--grace", type=float, default=10.0)
    given = parser.parse_args()
    done: list[Preemption] = []
    with tempfile.TemporaryDirectory(prefix="gemps-preemption-") as name, contextlib.ExitStack() as stack:
        preempted, alone = (
            stack.enter_context(started(Path(name) / kind, given.workers)) for kind in ("with", "without")
        )
        wait_for_commits([preempted, alone])
        load = os.getloadavg()[0]
        before = preempted.commits(), alone.commits()
        began = time.monotonic()
        while (now := time.monotonic() - began) < given.seconds:
            if now >= given.every * len(done):
                done.append(preempt(preempted, f"worker-{len(done) % given.workers}"))
            for one in done:
                one.poll(given.grace)
            alone.check_running()
            preempted.check_running()
            time.sleep(POLL_SECONDS)
        commits = preempted.commits() - before[0], alone.commits() - before[1]
        last_codes = [*preempted.finish(), *alone.finish()]
        ledgers = [(run, run.ledger()) for run in (preempted, alone)]
        extra, missing, twice = 0, 0, 0
        for run, ledger in ledgers:
            clocks: list[int] = []
            for worker, known in ledger.items():
                acknowledged = [
                    clock for one in (*run.ended, *run.running.values()) if one.name == worker for clock in one.clocks()
                ]
                extra += max(0, int(known["commits"]) - len(acknowledged))
                missing += max(0, len(acknowledged) - int(known["commits"]))
                clocks += acknowledged
            twice += len(clocks) - len(set(clocks))
    ratio = commits[0] / commits[1]
    print(f"{given.workers} workers, SIGTERM every {given.every:g} s, {given.seconds:g} s, load before {load:.1f}")
    print(f"commits: {commits[0]} with, {commits[1]} without: ratio {ratio:.4f}")
    codes = [one.code for one in done]
    leaving = sorted(one.leaving for one in done)
    print(f"exit codes after SIGTERM: {codes}; at the end: {sorted(set(last_codes))}")
    print(f"seconds from SIGTERM to exit: {leaving[0]:.2f} to {leaving[-1]:.2f}")
    print(f"seconds from SIGTERM to the next commit: {', '.join(f'{one.absent:.1f}' for one in done)}")
    print(f"acknowledged commits that are missing: {missing}, applied twice: {twice}; unacknowledged ones: {extra}")
    failed = [
        problem
        for problem, holds in (
            (f"the ratio is below {LEAST_RATIO}", ratio >= LEAST_RATIO),
            ("an exit code is not 0", {*codes, *last_codes} == {0}),
            ("an acknowledged commit is lost, or was applied twice", missing == twice == 0),
        )
        if not holds
    ]
    sys.exit("; ".join(failed) or 0)


if __name__ == "__main__":
    main()
