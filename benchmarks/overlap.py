"""What computing during the exchange brings and costs: time a step, and what is learned.

Time: each worker process has two sessions with one server, one with overlap and one without, which work by turns, so
that the ratios of a row are from one run and alternate. Learning: the task digits, the same number of steps with
overlap and without, several seeds; in round-robin order a run follows from its seed alone.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.overlap_runs import WAYS, Block, Case, Learned, digits, learn, measure

CASES = (
    Case("4.2 M, stream", 2048, 1, 16),
    Case("4.2 M, stream", 2048, 1, 64),
    Case("4.2 M, stream", 2048, 1, 256),
    Case("4.2 M, shared memory", 2048, 1, 16, shared=True),
    Case("4.2 M, shared memory", 2048, 1, 64, shared=True),
    Case("4.2 M, stream", 2048, 1, 64, workers=4),
    Case("12 k, 5 ms each way", 64, 3, 1024, delay=5),
    Case("12 k, 5 ms each way", 64, 3, 4096, delay=5),
    Case("12 k, 5 ms each way", 64, 3, 1024, workers=4, delay=5),
)


def main() -> None:
    """Measure, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", choices=("time", "learning"), default=None, help="only this one")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each way, in each round")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16, 30], help="that learn")
    parser.add_argument("--steps", type=int, default=300, help="of each worker that learns")
    parser.add_argument("--eta", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--orders", nargs="+", default=["round-robin", "fifo"])
    arguments = parser.parse_args()
    console = Console()
    console.width = max(console.width, 130)  # also in a log file
    if arguments.part != "learning":
        console.print(times(arguments))
    if arguments.part != "time":
        console.print(learning(arguments))


def times(arguments: argparse.Namespace) -> Table:
    """A row for each case."""
    table = _table(
        f"ms a step, and of them waiting for answers: medians of {arguments.rounds} rounds of {arguments.seconds:g} s",
        ("case", "workers", "batch", "in turn", "waiting", "overlap", "waiting", "overlap / in turn", "of CPU time"),
    )
    for case in CASES:
        found = measure(case, arguments.rounds, arguments.seconds)
        pairs = list(zip(*(found[way] for way in WAYS), strict=True))
        shown = (statistics.median(values) for way in WAYS for values in zip(*map(_times, found[way]), strict=True))
        table.add_row(
            case.name,
            str(case.workers),
            str(case.batch),
            *(f"{value:.1f}" for value in shown),
            _spread([overlap.step / in_turn.step for in_turn, overlap in pairs], statistics.median),
            f"{statistics.median(overlap.cpu / in_turn.cpu for in_turn, overlap in pairs):.2f}",
        )
    return table


def _times(block: Block) -> tuple[float, float]:
    return block.step, block.waited


def learning(arguments: argparse.Namespace) -> Table:
    """A row for each order and number of workers; losses are geometric means over the seeds."""
    table = _table(
        f"digits, {arguments.steps} steps a worker, batches of 64, eta {arguments.eta:g}, {arguments.seeds} seeds: "
        "in turn, and with overlap",
        ("order", "workers", "staleness", "", "test accuracy", "", "training loss", "", "overlap / in turn"),
    )
    task = digits()
    for order in arguments.orders:
        for workers in arguments.workers:
            ends: dict[bool, list[Learned]] = {way: [] for way in WAYS}
            for seed in range(arguments.seeds):
                for way in WAYS:
                    found = learn(task, workers, arguments.steps, order, arguments.eta, seed, overlap=way)
                    ends[way].append(found)
            table.add_row(
                order,
                str(workers),
                *(f"{statistics.mean(one.staleness for one in ends[way]):.1f}" for way in WAYS),
                *(f"{statistics.mean(one.accuracy for one in ends[way]):.4f}" for way in WAYS),
                *(f"{statistics.geometric_mean(one.loss for one in ends[way]):.5f}" for way in WAYS),
                _spread(
                    [overlap.loss / in_turn.loss for in_turn, overlap in zip(ends[False], ends[True], strict=True)],
                    statistics.geometric_mean,
                ),
            )
    return table


def _table(title: str, headings: Sequence[str]) -> Table:
    table = Table(title=title)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("case", "order") else "right")
    return table


def _spread(values: Sequence[float], middle: Callable[[Sequence[float]], float]) -> str:
    return f"{middle(values):.2f} ({min(values):.2f}-{max(values):.2f})"


if __name__ == "__main__":
    main()
