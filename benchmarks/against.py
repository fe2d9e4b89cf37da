"""Commits a second of this checkout against another revision's, in alternating rounds (`make bench-against REV=...`).

Each round starts a server and its workers, first of the one revision, then of the other, for every case. Workers commit
prepared deltas over the best transport that the revision has without shared memory, so what is compared is the client
library, the transport and the server. Medians over the rounds, and the ratio of medians.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from harness.processes import processor_seconds
from rich.console import Console
from rich.table import Table
from served import serve

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("", "proto", "server", "worker", "cli", "conformance", "simulator", "reproduction")


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
    parser.add_argument("--wires", nargs="+", default=["float32", "bfloat16", "int8_block"])
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
                    for name, root in (("other", other), ("this", ROOT)):
                        one = measure(case, root, certs, arguments.seconds)
                        found.setdefault((case, name), []).append(one)
                        print(f"round {number + 1}: {case.name}: {name} {one.rate:,.1f}/s", file=sys.stderr, flush=True)
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
        rates = [statistics.median(one.rate for one in group) for group in (ours, theirs)]
        cells += [f"{rate:,.1f}" for rate in rates] + [f"{rates[0] / rates[1]:.3f}"]
        for field in ("server_ms", "worker_ms"):
            cells += [f"{statistics.median(getattr(one, field) for one in group):.3f}" for group in (ours, theirs)]
        table.add_row(*cells)
    console = Console()
    console.width = max(console.width, 120)
    console.print(table)


def measure(case: Case, root: Path, certs: Path, seconds: float) -> Found:
    """One server and its workers, of the checkout at `root`."""
    os.chdir(root)  # `python -m` imports from there first
    os.environ["PYTHONPATH"] = os.pathsep.join(str(root / name) for name in PACKAGES)
    flags = ["--min-workers", str(case.workers), "--no-telemetry"]
    flags += ["--credentials", str(certs / "server")] if case.tls else []
    with tempfile.TemporaryDirectory(prefix="gemps-against-") as folder, serve(Path(folder), *flags) as served:
        environment = dict(os.environ)
        if case.tls:
            environment["GEMPS_CLIENT_CREDENTIALS"] = str(certs / "worker")
        crew = subprocess.Popen(
            [
                sys.executable,
                str(ROOT / "benchmarks" / "against_workers.py"),
                *(served.address, str(case.parameters), case.wire, str(case.workers), str(seconds)),
            ],
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        assert crew.stdout is not None
        if crew.stdout.readline() != "measuring\n":
            sys.exit(f"{case.name}: the workers failed, see above")
        before = processor_seconds([served.process.pid])
        result = json.loads(crew.stdout.readline())
        server = processor_seconds([served.process.pid]) - before
        crew.wait()
        time.sleep(0.2)
    commits = result["commits"]
    return Found(commits / result["seconds"], 1000 * server / commits, 1000 * result["processor"] / commits)


if __name__ == "__main__":
    main()
