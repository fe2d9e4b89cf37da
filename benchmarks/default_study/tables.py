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
    """Return the loss that the script reaches in one process after `steps` steps; NaN if that has not run."""
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
        if not all(tried):
            continue
        losses = [one.loss if one else math.nan for one in tried]
        short = alone(results, case, script, rate, gradients // workers)
        long = alone(results, case, script, rate, gradients)
        best = min((one for one in losses if not math.isnan(one)), default=math.nan)
        gains = [gain(short, one, long) if workers > 1 else math.nan for one in losses]
        said = [
            f"{loss:.3f}{'' if math.isnan(share) else f' ({share:.2f})'}, {loss / best:.3f}"
            for loss, share in zip(losses, gains, strict=True)
        ]
        rows.append(
            (
                max(one / best for one in losses),
                [f"{rate:g}", f"{workers}, {order}", _number(short), _number(long), *said],
            )
        )
    for _, row in sorted(rows, key=lambda one: -one[0]):
        yield row


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


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
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *rows))


def default_rows(results: Results, methods: Sequence[tuple[str, float]], runs: Iterable[Run]) -> Iterator[list[str]]:
    """For each cell: loss, that of the averaged model, accuracy, and the ratio to the first method's loss."""
    cells = dict.fromkeys((run.case, run.workers, run.order, run.gradients) for run in runs)
    rows: list[tuple[float, list[str]]] = []
    for case, workers, order, gradients in cells:
        tried = [found_in(results, Run(case, name, rate, workers, order, gradients)) for name, rate in methods]
        if tried[0] is None:
            continue
        ratios = [one.loss / tried[0].loss if one else math.nan for one in tried]
        cell = [case, f"{workers}, {order}", str(gradients)]
        rows.append((ratios[1], cell + [_described(one, ratio) for one, ratio in zip(tried, ratios, strict=True)]))
    yield from (row for _, row in sorted(rows, key=lambda one: -one[0]))


def _described(found: Found | None, ratio: float) -> str:
    if found is None or not found.figures:
        return "-" if found is None else "failed"
    figures = found.figures
    accuracy = "" if found.run.case.startswith("text") else f", {figures['accuracy']:.1%}"
    return f"{found.loss:.3f} ({figures['averaged_loss']:.3f}){accuracy}, {ratio:.3f}"


def own_rows(results: Results, runs: Iterable[Run]) -> Iterator[list[str]]:
    """Any other optimizer: the script alone, and its loss and gain with n workers."""
    for run in runs:
        found = found_in(results, run)
        if not run.method.endswith(" moved") or found is None:
            continue
        script = run.method.removesuffix(" moved")
        short, long = (
            alone(results, run.case, f"{script} alone", run.rate, steps)
            for steps in (run.gradients // run.workers, run.gradients)
        )
        share = f"{gain(short, found.loss, long):.2f}" if run.workers > 1 else "-"
        cell = [run.case, f"{script} {run.rate:g}", f"{run.workers}, {run.order}"]
        yield [*cell, f"{short:.3f}", f"{long:.3f}", f"{found.loss:.3f}", share]
