"""Seconds until a model is good, in several worlds: `make bench-time`; needs root. docs/benchmarks.md says how.

    python -m time_to_loss --search                  learning rates, in the world "equal", with seed 100
    python -m time_to_loss [--worlds W ...] [--contenders C ...] [--rounds 3]

Both write to --output after each run. A round has all contenders in turn, with the same seed.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from time_to_loss.contenders import CONTENDERS, Contender
from time_to_loss.contest import Outcome, run
from time_to_loss.verdicts import judged, table
from time_to_loss.workload import WORKLOADS
from time_to_loss.worlds import WORLDS

SEARCH_SEED = 100


def main() -> None:
    """Run, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--workload", default="text", choices=WORKLOADS)
    parser.add_argument("--worlds", nargs="+", default=list(WORLDS), choices=WORLDS)
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of a run")
    parser.add_argument("--output", type=Path, default=Path("runs/time-to-loss.json"))
    given = parser.parse_args()
    results = Results(given.output)
    contenders = [CONTENDERS[name] for name in given.contenders]
    if given.search:
        for contender in contenders:
            for rate in contender.rates:
                results.add(run(contender, WORLDS["equal"], given.workload, rate, SEARCH_SEED, given.limit), "search")
        return
    rates = {contender.name: results.best_rate(contender, given.workload) for contender in contenders}
    for world in given.worlds:
        for seed in range(given.rounds):
            for contender in contenders:
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

    def best_rate(self, contender: Contender, workload: str) -> float:
        """Of the search; the second of its rates where there was none."""
        found = [
            (one["seconds"], one["rate"])
            for one in self._data["search"]
            if one["contender"] == contender.name and one["workload"] == workload and one["seconds"] is not None
        ]
        return float(min(found)[1]) if found else contender.rates[1]

    def runs(self, workload: str) -> list[dict[str, Any]]:
        """Those of a workload."""
        return [one for one in self._data["runs"] if one["workload"] == workload]


if __name__ == "__main__":
    main()
