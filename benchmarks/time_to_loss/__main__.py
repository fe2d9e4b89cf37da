"""Seconds until a model is good, in several worlds; needs root. docs/time-to-loss.md has results.

A learning rate for each contender that has one is searched first, in the world "equal" with other seeds: its rates, and
twice the highest while that is the fastest. A round has all worlds, and in each all contenders in turn, with the same
seed. Runs in --output are not repeated.
"""

import argparse
import itertools
import json
import math
import signal
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gem_worker.errors import TaskError

from benchmarks.time_to_loss.contenders import CONTENDERS, Contender
from benchmarks.time_to_loss.contest import Outcome, run
from benchmarks.time_to_loss.verdicts import compared, judged, table
from benchmarks.time_to_loss.workload import WORKLOADS
from benchmarks.time_to_loss.worlds import WORLDS

SEARCH_SEEDS = 100, 101
MOST_DOUBLINGS = 4


def main() -> None:
    """Run, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="text", choices=WORKLOADS)
    parser.add_argument("--worlds", nargs="+", default=list(WORLDS), choices=WORLDS)
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of a run")
    parser.add_argument("--search-limit", type=float, default=60.0, help="seconds of a run of the search")
    parser.add_argument("--output", type=Path, default=Path("runs/time-to-loss.json"))
    parser.add_argument(
        "--compared-in", type=Path, help="run only what the goals compare in these results, with their rates"
    )
    given = parser.parse_args()
    if given.compared_in and not given.compared_in.exists():
        parser.error(f"--compared-in {given.compared_in}: there is no such file")
    try:
        WORKLOADS[given.workload].model(0)
    except TaskError as error:
        parser.error(f"--workload {given.workload}: {error}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces and groups are removed
    results = Results(given.output)
    earlier = Results(given.compared_in) if given.compared_in else None
    cells = [
        (world, CONTENDERS[name])
        for world in given.worlds
        for name in given.contenders
        if earlier is None or name in compared(earlier.runs(given.workload), world)
    ]
    for contender in dict.fromkeys(contender for _, contender in cells):
        if contender.is_missing:
            print(f"{contender.name} is skipped: {contender.package} is not installed (make bench installs it)")
    cells = [(world, contender) for world, contender in cells if not contender.is_missing]
    rates = {}
    for contender in dict.fromkeys(contender for _, contender in cells):
        for rate, seed in () if earlier else results.to_search(contender, given.workload):
            found = run(contender, WORLDS["equal"], given.workload, rate, seed, given.search_limit)
            results.add(found, "search")
        rates[contender.name] = (earlier or results).best_rate(contender, given.workload)
    for seed, (world, contender) in itertools.product(range(given.rounds), cells):
        if not results.has_run(contender, given.workload, world, seed):
            rate = rates[contender.name]
            results.add(run(contender, WORLDS[world], given.workload, rate, seed, given.limit), "runs")
    runs = results.runs(given.workload)
    print(table(runs), *judged(runs), sep="\n")


class Results:
    """A JSON file: "search" and "runs", lists of outcomes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._data: dict[str, list[dict[str, Any]]] = {"search": [], "runs": []}
        if path.exists():
            self._data = json.loads(path.read_text(encoding="utf-8"))

    def add(self, outcome: Outcome, kind: str) -> None:
        """Append, write and print one."""
        self._data[kind].append(outcome.as_json())
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._data, indent=1), encoding="utf-8")
        found = f"{outcome.seconds:.1f} s" if outcome.seconds is not None else outcome.why
        last = f", last loss {outcome.curve[-1][1]} after {outcome.curve[-1][0]} s" if outcome.curve else ""
        print(
            f"{outcome.world} {outcome.contender} {outcome.workload} rate {outcome.rate:g} seed {outcome.seed}: {found}"
            f"{last}, {outcome.sent / 1e6:.1f} MB, {outcome.failures} failures",
            flush=True,
        )

    def to_search(self, contender: Contender, workload: str) -> Iterator[tuple[float, int]]:
        """Rates and seeds that the search lacks. What follows depends on the outcome, so add it before the next."""
        if not contender.rates:
            return
        highest = max(contender.rates)
        for rate in (*contender.rates, *(highest * 2**doubling for doubling in range(1, MOST_DOUBLINGS + 1))):
            if rate > highest and self.best_rate(contender, workload) < rate / 2:
                return
            searched = [one["seed"] for one in self._searched(contender, workload) if one["rate"] == rate]
            yield from ((rate, seed) for seed in SEARCH_SEEDS if seed not in searched)

    def has_run(self, contender: Contender, workload: str, world: str, seed: int) -> bool:
        """Whether a round has this."""
        wanted = (contender.name, world, seed)
        return any((one["contender"], one["world"], one["seed"]) == wanted for one in self.runs(workload))

    def best_rate(self, contender: Contender, workload: str) -> float:
        """Fastest to the target, as the mean of its seeds; if none reached it, that of the lowest last loss.

        0 for a contender without a rate.
        """
        if not contender.rates:
            return 0.0
        searched = self._searched(contender, workload)

        def order(rate: float) -> tuple[float, float]:
            found = [one for one in searched if one["rate"] == rate]
            seconds = (one["seconds"] or math.inf for one in found)
            losses = (one["curve"][-1][1] if one["curve"] else math.inf for one in found)
            return statistics.fmean(seconds), statistics.fmean(losses)

        return float(min((one["rate"] for one in searched), key=order))

    def _searched(self, contender: Contender, workload: str) -> list[dict[str, Any]]:
        return [
            one for one in self._data["search"] if one["contender"] == contender.name and one["workload"] == workload
        ]

    def runs(self, workload: str) -> list[dict[str, Any]]:
        """Those of a workload."""
        return [one for one in self._data["runs"] if one["workload"] == workload]


if __name__ == "__main__":
    main()
