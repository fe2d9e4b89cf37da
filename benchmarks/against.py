"""Commits a second of this checkout against another revision's, in alternating rounds.

Each round starts a server and its workers of each revision, for every case. They run in turn for a quarter of a second,
while the other revision's processes are stopped, so that both see the same load of the machine. Workers commit prepared
deltas over the best transport that the revision has without shared memory, so what is compared is the client library,
the transport and the server. Medians over the rounds; the ratio is the median of the rounds' ratios.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.table import Table

from benchmarks.harness.processes import processor_seconds
from benchmarks.served import serve

ROOT = Path(__file__).resolve().parent.parent
WARM_UP_SECONDS, SLICE_SECONDS = 1.0, 0.25
PACKAGES = ("", "proto", "server", "worker", "cli", "launch", "conformance", "simulator", "reproduction")


@dataclass(frozen=True)
class Case:
    """What is measured."""

    parameters: int
    wire: str
    workers: int
    tls: bool

    @property
    def name(self) -> str:
        """For the table."""
        return f"{self.parameters:,} {self.wire}, {self.workers} workers{', TLS' if self.tls else ''}"


@dataclass(frozen=True)
class Found:
    """Of one round: commits a second, and processor ms a commit of the server and of a worker."""

    rate: float
    server_ms: float
    worker_ms: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--revision", required=True, help="what to compare with: a commit")
    parser.add_argument("--parameters", type=int, nargs="+", default=[2_048, 4_200_000])
    parser.add_argument("--wires", nargs="+", default=["float32", "bfloat16", "int4_block"])
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 32])
    parser.add_argument("--tls", action="store_true", help="also with TLS")
    parser.add_argument("--only-tls", action="store_true", help="with TLS alone")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    transports = (True,) if arguments.only_tls else (False, True) if arguments.tls else (False,)
    cases = [
        Case(parameters, wire, workers, tls)
        for parameters in arguments.parameters
        for workers in arguments.workers
        for wire in arguments.wires
        for tls in transports
    ]
    found: dict[tuple[Case, str], list[Found]] = {}
    with tempfile.TemporaryDirectory(prefix="gemps-against-") as folder:
        other = Path(folder) / "other"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(other), arguments.revision], check=True)
        certs = Path(folder) / "certs"
        subprocess.run([sys.executable, "-m", "gem_cli", "certs", str(certs)], check=True, stdout=subprocess.DEVNULL)
        try:
            for number in range(arguments.rounds):
                for case in cases:
                    pair = measure(case, {"other": other, "this": ROOT}, certs, arguments.seconds)
                    for name, one in pair.items():
                        found.setdefault((case, name), []).append(one)
                    rates = f"other {pair['other'].rate:,.1f}/s, this {pair['this'].rate:,.1f}/s"
                    print(f"round {number + 1}: {case.name}: {rates}", file=sys.stderr, flush=True)
        finally:
            subprocess.run([*git, "remove", "--force", str(other)], check=True)
    show(cases, found, arguments.revision)


def show(cases: list[Case], found: dict[tuple[Case, str], list[Found]], revision: str) -> None:
    """Print the table."""
    table = Table(title=f"this checkout against {revision}: medians")
    for heading in ("case", "commits/s", "of the other", "ratio", "server ms", "other", "worker ms", "other"):
        table.add_column(heading, justify="right")
    for case in cases:
        ours, theirs = found[case, "this"], found[case, "other"]
        cells = [case.name]
        cells += [f"{statistics.median(one.rate for one in group):,.1f}" for group in (ours, theirs)]
        cells.append(f"{statistics.median(one.rate / it.rate for one, it in zip(ours, theirs, strict=True)):.3f}")
        for field in ("server_ms", "worker_ms"):
            cells += [f"{statistics.median(getattr(one, field) for one in group):.3f}" for group in (ours, theirs)]
        table.add_row(*cells)
    console = Console()
    console.width = max(console.width, 120)
    console.print(table)


class Side:
    """A server and its workers, of the checkout at `root`; `run` lets them work for a while. Use as a context."""

    def __init__(self, case: Case, root: Path, certs: Path) -> None:
        self._stack = ExitStack()
        self.forget()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(root / name) for name in PACKAGES)}
        os.environ["PYTHONPATH"] = environment["PYTHONPATH"]
        os.chdir(root)  # `python -m` imports from there first
        flags = ["--min-workers", str(case.workers)]
        if case.tls:
            flags += ["--credentials", str(certs / "server")]
            environment["GEMPS_CLIENT_CREDENTIALS"] = str(certs / "worker")
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="gemps-against-")))
        served = self._stack.enter_context(serve(folder, *flags))
        crew = str(ROOT / "benchmarks" / "against_workers.py")
        self._crew = subprocess.Popen(
            [sys.executable, crew, served.address, str(case.parameters), case.wire, str(case.workers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self._pids = [served.process.pid, *map(int, self._answer().split())]
        self._send(signal.SIGSTOP)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._send(signal.SIGCONT)
        assert self._crew.stdin is not None
        self._crew.stdin.close()
        self._crew.wait()
        self._stack.close()

    def forget(self) -> None:
        """Begin to measure."""
        self._commits = self._seconds = self._server = self._workers = 0.0

    def run(self, seconds: float) -> None:
        """Let them work."""
        before = self._so_far()
        begun = time.monotonic()
        self._send(signal.SIGCONT)
        time.sleep(seconds)
        self._send(signal.SIGSTOP)
        self._seconds += time.monotonic() - begun
        commits, server, workers = (after - was for after, was in zip(self._so_far(), before, strict=True))
        self._commits += commits
        self._server += server
        self._workers += workers

    def found(self) -> Found:
        """What they did while they worked."""
        commits = self._commits
        return Found(commits / self._seconds, 1000 * self._server / commits, 1000 * self._workers / commits)

    def _so_far(self) -> tuple[float, float, float]:
        assert self._crew.stdin is not None
        self._crew.stdin.write("count\n")
        self._crew.stdin.flush()
        commits = float(self._answer())
        return commits, processor_seconds(self._pids[:1]), processor_seconds(self._pids[1:])

    def _answer(self) -> str:
        assert self._crew.stdout is not None
        line = self._crew.stdout.readline()
        if not line:
            sys.exit("the workers failed, see above")
        return line

    def _send(self, number: signal.Signals) -> None:
        for pid in self._pids:
            os.kill(pid, number)


def measure(case: Case, roots: dict[str, Path], certs: Path, seconds: float) -> dict[str, Found]:
    """Each checkout for `seconds`, in turn, after a second of warming up."""
    with ExitStack() as stack:
        sides = {name: stack.enter_context(Side(case, root, certs)) for name, root in roots.items()}
        for side in sides.values():
            side.run(WARM_UP_SECONDS)
            side.forget()
        for _ in range(round(seconds / SLICE_SECONDS)):
            for side in sides.values():
                side.run(SLICE_SECONDS)
        return {name: side.found() for name, side in sides.items()}


if __name__ == "__main__":
    main()
