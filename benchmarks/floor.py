"""The least processor time that a commit of gemps could take, beside what it and its peers take.

With more workers than cores processor time decides, so how many times as fast as a peer gemps can be has a limit.
`peers/floor.py` does what a commit of gemps cannot do without, and nothing else, timed part by part, as one more
contender in the same rounds: it meets the same machine, as busy, with as many workers. Everything goes into a JSON file
like that of `make bench`; the tables, in Markdown, come from it.
"""

import argparse
import signal
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console

from benchmarks.harness import plan, surroundings, targets
from benchmarks.harness.environments import REPOSITORY
from benchmarks.harness.results import About, Results, Spread, rate, server_cpu, workers_cpu
from benchmarks.harness.rounds import run_all
from benchmarks.harness.run import Run
from benchmarks.peers import CONTENDERS
from benchmarks.peers.interface import Case

WAYS = ("float32", "bfloat16", "shared-memory")
PEERS = ("grpc-echo-cpp", "torch-rpc-tcp", "torch-rpc-shared-memory", "ray-actor", "torch-gloo-paper")
DEFAULT = Case(4_194_304, 4)


def cpu(run: Run) -> float:
    """Processor milliseconds of server and worker together for a commit, as the harness sees them from outside."""
    return server_cpu(run) + workers_cpu(run)


def floor(run: Run) -> float:
    """Processor milliseconds of all parts of a commit together, as the contender itself has timed them."""
    return 1000 * sum(run.parts.values())


def middle(runs: Iterable[Run]) -> Run | None:
    """The run whose floor is the median (of two, the lower): a sum of medians would be nobody's sum."""
    found = list(runs)
    return min(found, key=lambda run: abs(floor(run) - statistics.median_low(map(floor, found))), default=None)


def part_rows(results: Results, case: Case) -> list[list[str]]:
    """A row a part, a column a way; then the sums, the harness' view of the same program, and gemps."""
    chosen = [middle(results.of(f"floor-{way}", case).values()) for way in WAYS]
    # The order in which a commit comes to them, whichever of the ways has it.
    names = list(dict.fromkeys(part for run in chosen if run is not None for part in run.parts))
    rows = [["CPU ms a commit", *WAYS]]
    for side in ("worker", "server"):
        of_side = (name for name in names if name.startswith(f"{side}: "))
        rows += ([name, *(_part(run, name) for run in chosen)] for name in of_side)
    rows.append(["**all parts together: the floor**", *("-" if run is None else f"{floor(run):.1f}" for run in chosen)])
    rows.append(["the same program, seen from outside", *(_median(results, f"floor-{way}", case) for way in WAYS)])
    rows.append(["gemps", *(_median(results, f"gemps-{way}", case) for way in WAYS)])
    return rows


def ratio_rows(results: Results, case: Case) -> list[list[str]]:
    """A row a goal: what the floor allows, what the program that does nothing else reaches, what gemps reaches.

    "peer / floor" is of processor times: how many times as fast, if the cores are as busy as the peer makes them. The
    other three are of commits a second, as multiples of the peer's; "at most" when a commit takes the floor and every
    core spends all of its time on commits.
    """
    most = 1000 * results.machine["cores"]  # milliseconds of processor time a second
    rows = [
        [
            "case",
            "goal",
            "CPU ms: peer, floor",
            "peer / floor",
            "commits/s: at most",
            "the floor's program",
            "gemps",
        ]
    ]
    for goal in targets.GOALS:
        peer = goal.to if goal.to is not None else results.best_peer(case)
        if goal.case != targets.MIDDLE or peer is None:
            continue
        least = goal.name.replace("gemps-", "floor-")
        wanted = "" if goal.least is None else f"{goal.least:g}"
        rows.append(
            [
                goal.title.partition(", ")[2],
                f"{wanted} times {peer}".strip(),
                f"{_median(results, peer, case)}, {_median(results, least, case, floor)}",
                _shown(_both(results, peer, least, case, lambda other, own: cpu(other) / floor(own))),
                _shown(_both(results, peer, least, case, lambda other, own: most / floor(own) / rate(other))),
                _shown(results.ratio(least, case, peer)),
                _shown(results.ratio(goal.name, case, peer)),
            ]
        )
    return rows


def markdown(rows: list[list[str]]) -> str:
    """A table; the first row is its head."""
    head, *body = ([cell.replace("|", "/") for cell in row] for row in rows)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body))


def main() -> None:
    """Run, and show."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as Ctrl-C: the processes of a run end with it
    case = Case(arguments.parameters, arguments.workers)
    if arguments.show:
        try:
            results = Results.load(arguments.output)
        except (OSError, ValueError) as error:
            sys.exit(f"{error}: run `python -m benchmarks.floor` first, or name its file with --output")
        cases = results.cases()
    else:
        results, cases = _measure(case, arguments), [case]
    for one in cases:
        print(f"\n{one}; medians of {results.settings['rounds']} rounds, lowest..highest\n")
        print(markdown(part_rows(results, one)), markdown(ratio_rows(results, one)), sep="\n\n")


def _measure(case: Case, arguments: argparse.Namespace) -> Results:
    names = [f"{who}-{way}" for way in WAYS for who in ("floor", "gemps")] + list(PEERS)
    made = plan.make(plan.product(names, [case.parameters], [case.workers]), CONTENDERS, plan.Room.here())
    results = Results(
        surroundings.machine(),
        surroundings.versions(),
        {"rounds": arguments.rounds, "seconds": arguments.seconds},
        {name: About.of(CONTENDERS[name]) for name in names},
        made.skipped,
    )
    run_all(made, results, arguments.output, Console(stderr=True))
    return results


def _both(results: Results, peer: str, least: str, case: Case, figure: Callable[[Run, Run], float]) -> Spread | None:
    """A figure of a peer's run and a floor's, of each round that has both."""
    runs, others = results.of(peer, case), results.of(least, case)
    return Spread.of(figure(run, others[number]) for number, run in runs.items() if number in others)


def _part(run: Run | None, name: str) -> str:
    return "-" if run is None or name not in run.parts else f"{1000 * run.parts[name]:.1f}"


def _median(results: Results, name: str, case: Case, figure: Callable[[Run], float] = cpu) -> str:
    found = results.figure(name, case, figure)
    return "-" if found is None else f"{found.median:.1f}"


def _shown(found: Spread | None) -> str:
    return "-" if found is None else found.shown()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parameters", type=int, default=DEFAULT.parameters, help="size of the model")
    parser.add_argument("--workers", type=int, default=DEFAULT.workers)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="timed in each run")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "runs" / "floor.json", help="the JSON file")
    parser.add_argument("--show", action="store_true", help="run nothing: the tables of the JSON file")
    arguments = parser.parse_args()
    if min(arguments.parameters, arguments.workers, arguments.rounds) < 1 or arguments.seconds <= 0:
        parser.error("--parameters, --workers, --rounds: at least 1, and --seconds: more than 0")
    return arguments


if __name__ == "__main__":
    main()
