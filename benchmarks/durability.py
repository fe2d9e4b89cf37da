"""What durability costs: commits a second at each level, in turn, several times (`make bench-durability`).

The disk is that of --directory. Compare figures of one call only; the last column does.
"""

import argparse
import statistics
from pathlib import Path

from exchange import measure
from rich.console import Console
from rich.table import Table

LEVELS = ("none", "interval", "commit")


def main() -> None:
    """Measure each size and level, alternating, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parameters", type=int, nargs="+", default=[2_048, 4_200_000])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, default=None, help="a folder on the disk to measure")
    arguments = parser.parse_args()
    table = Table(
        title=f"gem, {arguments.workers} workers, {arguments.rounds} rounds of {arguments.seconds:g} s for each level"
    )
    for heading in ("parameters", "durability", "commits/s", "lowest", "highest", "round trip, ms", "of none"):
        table.add_column(heading, justify="right")
    for parameters in arguments.parameters:
        rates: dict[str, list[float]] = {level: [] for level in LEVELS}
        trips: dict[str, list[float]] = {level: [] for level in LEVELS}
        for _ in range(arguments.rounds):
            for level in LEVELS:
                took = measure(
                    "gem",
                    parameters,
                    arguments.workers,
                    arguments.seconds,
                    durability=level,
                    directory=arguments.directory,
                )
                rates[level].append(len(took) / arguments.seconds)
                trips[level].append(statistics.median(took))
        base = statistics.median(rates["none"])
        for level in LEVELS:
            median = statistics.median(rates[level])
            table.add_row(
                f"{parameters:,}",
                level,
                f"{median:.0f}",
                f"{min(rates[level]):.0f}",
                f"{max(rates[level]):.0f}",
                f"{1000 * statistics.median(trips[level]):.1f}",
                f"{median / base:.2f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
