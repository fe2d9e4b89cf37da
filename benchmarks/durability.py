"""What it costs to keep what happens: commits a second in each way, in turn, several times.

`interval` writes a checkpoint every second, which is far more often than the default; what its longest round trip has
above that of `none` is how long a checkpoint holds commits up. The disk is that of --directory. Compare figures of one
call only; the last column does.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.round_trips import measure


@dataclass(frozen=True, eq=False)
class Way:
    """A way to run a server: its flags, and those whose values are files."""

    name: str
    flags: dict[str, object] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    tls: bool = False


DATA = {"--data-dir": "data"}
WAYS = (
    Way("none"),
    Way("interval, 1 s", {"--durability": "interval", "--checkpoint-interval": 1}, DATA),
    Way("commit", {"--durability": "commit"}, DATA),
    Way("none, --record", files={"--record": "run.trace"}),
    Way("none, TLS", tls=True),
)


def main() -> None:
    """Measure each size in each way, alternating, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parameters", type=int, nargs="+", default=[2_048, 4_200_000])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, default=None, help="a folder on the disk to measure")
    arguments = parser.parse_args()
    table = Table(
        title=f"gem, {arguments.workers} workers, medians of {arguments.rounds} rounds of {arguments.seconds:g} s"
    )
    for heading in ("parameters", "kept", "commits/s", "lowest", "highest", "ms: median", "99 %", "longest", "of none"):
        table.add_column(heading, justify="right")
    with tempfile.TemporaryDirectory(prefix="gemps-bench-") as folder:
        certs = Path(folder) / "certs"
        subprocess.run([sys.executable, "-m", "gem_cli", "certs", str(certs)], check=True, stdout=subprocess.DEVNULL)
        for parameters in arguments.parameters:
            found: dict[Way, list[list[float]]] = {way: [] for way in WAYS}
            for _ in range(arguments.rounds):
                for way in WAYS:
                    took = measure(
                        "gem",
                        parameters,
                        arguments.workers,
                        arguments.seconds,
                        credentials=certs if way.tls else None,
                        flags=way.flags,
                        files=way.files,
                        directory=arguments.directory,
                    )
                    found[way].append(took)
            for row in rows(parameters, found, arguments.seconds):
                table.add_row(*row)
    console = Console()
    console.width = max(console.width, 120)  # also in a log file
    console.print(table)


def rows(parameters: int, found: dict[Way, list[list[float]]], seconds: float) -> list[tuple[str, ...]]:
    """A row for each way: rates of its rounds, and medians over the rounds of each round's trips."""
    rates = {way: [len(took) / seconds for took in rounds] for way, rounds in found.items()}
    base = statistics.median(rates[WAYS[0]])
    lines = []
    for way, rounds in found.items():
        trips = [np.percentile(np.array(took) * 1000, [50, 99, 100]) for took in rounds]
        median = statistics.median(rates[way])
        shown = (median, min(rates[way]), max(rates[way]))
        lines.append(
            (
                f"{parameters:,}",
                way.name,
                *(f"{rate:,.0f}" for rate in shown),
                *(f"{value:.1f}" for value in np.median(trips, axis=0)),
                f"{median / base:.2f}",
            )
        )
    return lines


if __name__ == "__main__":
    main()
