"""The tables that `make bench` prints, from its file."""

from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from benchmarks.harness import results as of
from benchmarks.harness import targets
from benchmarks.harness.results import Results
from benchmarks.harness.run import Run
from benchmarks.peers.interface import Case

WIDTH = 160
HEADINGS = (
    "commits/s",
    "of best peer",
    "GB/s each way",
    "ms: median",
    "99 %",
    "CPU ms a commit: server",
    "worker",
    "server MB",
    "Jain",
)


def show(results: Results, console: Console) -> None:
    """Everything."""
    console.width = max(console.width, WIDTH)  # also in a log file
    for case in results.cases():
        console.print(case_table(results, case))
        for name in results.names(case):
            for error in results.errors(name, case):
                console.print(f"{name} failed in a round: {error}", markup=False, highlight=False)
    console.print(target_table(results))
    for reason, skipped in _grouped(results).items():
        console.print(f"not run: {', '.join(skipped)}: {reason}", markup=False, highlight=False)


def case_table(results: Results, case: Case) -> Table:
    """A row a contender; medians over the rounds, and for rates and ratios the lowest and the highest."""
    table = Table(title=f"{case} (medians over the rounds, lowest..highest; rounds: {results.settings['rounds']})")
    table.add_column("")
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    best = results.best_peer(case)

    def median(name: str, figure: Callable[[Run], float], digits: int) -> str:
        found = results.figure(name, case, figure)
        return "-" if found is None else f"{found.median:,.{digits}f}"

    for name in results.names(case):
        rates = results.figure(name, case, of.rate)
        if rates is None:
            table.add_row(results.contenders[name].title, "failed")
            continue
        ratio = results.ratio(name, case, best) if best is not None else None
        table.add_row(
            results.contenders[name].title,
            rates.shown(0 if rates.median >= 100 else 1),
            ratio.shown() if ratio is not None else "-",
            median(name, of.gigabytes, 2),
            median(name, lambda run: of.step_milliseconds(run, 50), 2),
            median(name, lambda run: of.step_milliseconds(run, 99), 2),
            median(name, of.server_cpu, 2),
            median(name, of.workers_cpu, 2),
            median(name, of.server_memory, 0),
            median(name, of.jain, 4),
        )
    return table


def target_table(results: Results) -> Table:
    """What was to be reached."""
    table = Table(title="targets (ratios of commits/s within a round; median, lowest..highest)")
    for heading in ("case", "target", "found", ""):
        table.add_column(heading)
    for row in targets.rows(results):
        table.add_row(row.case, row.target, row.found, row.verdict)
    return table


def _grouped(results: Results) -> dict[str, list[str]]:
    """What was skipped, by reason."""
    found: dict[str, list[str]] = {}
    for one in results.skipped:
        found.setdefault(one.reason, []).append(f"{one.contender} (P = {one.parameters:,}, {one.workers} workers)")
    return found
