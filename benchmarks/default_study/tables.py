"""Tables of the study's results, in Markdown; worst cells first."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, geometric_mean
from typing import NamedTuple

from benchmarks.default_study.training import ROUND_ROBIN, Run

Results = Mapping[str, Mapping[str, float]]


class Found(NamedTuple):
    """A cell's means over the seeds that have run; `figures` is empty if a run failed."""

    run: Run
    figures: Mapping[str, float]
    seeds: int

    @property
    def loss(self) -> float:
        """Held-out; infinite if a run failed."""
        return self.figures.get("loss", math.inf)


def found_in(results: Results, run: Run) -> Found | None:
    """Look a run up with all its seeds; None: it has not run."""
    runs = [found for seed in range(10) if (found := results.get(replace(run, seed=seed).key)) is not None]
    if not runs:
        return None
    names = set.intersection(*(set(one) for one in runs))
    figures = (
        {} if any("loss" not in one for one in runs) else {name: fmean(one[name] for one in runs) for name in names}
    )
    return Found(run, figures, len(runs))


def alone(results: Results, case: str, method: str, rate: float, steps: int) -> float:
    """Loss of the script in one process after so many steps."""
    found = found_in(results, Run(case, method, rate, 1, ROUND_ROBIN, steps))
    return found.loss if found else math.nan


def gain(short: float, found: float, long: float) -> float:
    """Share of what n times the data bring alone."""
    return (short - found) / (short - long)


def translation_rows(
    results: Results, case: str, script: str, methods: Sequence[str], runs: Iterable[Run]
) -> Iterator[list[str]]:
    """For each cell: the script alone at S and n S steps, then loss, gain, and ratio to the best candidate."""
    cells = dict.fromkeys((run.rate, run.workers, run.order, run.gradients) for run in runs if run.method in methods)
    rows = []
    for rate, workers, order, gradients in cells:
        tried = [found_in(results, Run(case, method, rate, workers, order, gradients)) for method in methods]
        losses = [one.loss if one else math.nan for one in tried]
        short = alone(results, case, script, rate, gradients // workers)
        long = alone(results, case, script, rate, gradients)
        best = min((one for one in losses if not math.isnan(one)), default=math.nan)
        gains = ["" if workers == 1 else f" ({gain(short, one, long):.2f})" for one in losses]
        said = [f"{loss:.3f}{gained}, {loss / best:.3f}" for loss, gained in zip(losses, gains, strict=True)]
        rows.append(
            (
                max(one / best for one in losses),
                [f"{rate:g}", f"{workers}, {order}", f"{short:.3f}", f"{long:.3f}", *said],
            )
        )
    for _, row in sorted(rows, key=lambda one: -one[0]):
        yield row


def worst_ratios(
    results: Results, case: str, methods: Sequence[str], runs: Iterable[Run]
) -> dict[str, tuple[float, float]]:
    """(worst, geometric mean) of the ratio to the lowest of `methods`, over all cells that have all of them."""
    cells = dict.fromkeys((run.rate, run.workers, run.order, run.gradients) for run in runs if run.method in methods)
    ratios: dict[str, list[float]] = {method: [] for method in methods}
    for cell in cells:
        tried = [found_in(results, Run(case, method, *cell)) for method in methods]
        if all(tried):
            losses = [one.loss for one in tried if one]
            for method, loss in zip(methods, losses, strict=True):
                ratios[method].append(loss / min(losses))
    return {method: (max(of), geometric_mean(of)) for method, of in ratios.items() if of}


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *rows))
