"""Runs, judges and draws figures."""

import json
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gem_reproduction import pictures
from gem_reproduction.errors import ReproductionError
from gem_reproduction.executor import execute
from gem_reproduction.figures import Figure, Group, Verdict
from gem_reproduction.outcomes import Outcome
from gem_reproduction.runs import Run, Scope

RESULTS = "results.json"


@dataclass(frozen=True, slots=True)
class FigureResult:
    """Figure's verdicts and picture."""

    figure: Figure
    verdicts: list[Verdict]
    runs: int
    picture: Path


def runs_of(figures: Sequence[Figure], scope: Scope) -> list[Run]:
    """The figures' first runs."""
    runs = {run.key(): run for figure in figures for seeds in figure.runs(scope).values() for run in seeds}
    return list(runs.values())


def groups_of(declared: Mapping[str, Sequence[Run]], outcomes: Mapping[str, Outcome]) -> dict[str, Group]:
    """Finished groups by name."""
    found = {name: [outcomes.get(run.key()) for run in seeds] for name, seeds in declared.items()}
    return {name: Group([one for one in some if one]) for name, some in found.items() if all(some)}


def reproduce(
    figures: Sequence[Figure],
    scope: Scope,
    folder: Path,
    jobs: int,
    on_done: Callable[[Run, Outcome, bool], None] = lambda run, outcome, new: None,
    on_more: Callable[[Sequence[Run]], None] = lambda runs: None,
) -> list[FigureResult]:
    """Run, judge, draw and write `results.json`.

    Runs in `folder` are reused. `on_more`: later stages. Raises ReproductionError, or ImportError without
    matplotlib.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        outcomes = execute(runs_of(figures, scope), folder, jobs, on_done)
        declared = {figure.name: figure.runs(scope) for figure in figures}
        while runs := _declare_more(figures, scope, declared, outcomes):
            on_more(runs)
            outcomes |= execute(runs, folder, jobs, on_done)
        findings = [_find(figure, scope, declared[figure.name], outcomes, folder) for figure in figures]
        text = json.dumps(results(findings, scope), indent=1) + "\n"
        (folder / RESULTS).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ReproductionError(f"{folder} cannot be written: {error.strerror}; choose another --output") from None
    return findings


def _declare_more(
    figures: Sequence[Figure],
    scope: Scope,
    declared: dict[str, dict[str, tuple[Run, ...]]],
    outcomes: Mapping[str, Outcome],
) -> list[Run]:
    for figure in figures:
        found = groups_of(declared[figure.name], outcomes)
        declared[figure.name] = figure.runs_after(scope, found)
    runs = {run.key(): run for runs in declared.values() for seeds in runs.values() for run in seeds}
    return [run for key, run in runs.items() if key not in outcomes]


def _find(
    figure: Figure,
    scope: Scope,
    declared: Mapping[str, tuple[Run, ...]],
    outcomes: Mapping[str, Outcome],
    folder: Path,
) -> FigureResult:
    found = groups_of(declared, outcomes)
    picture = folder / f"{figure.name}.png"
    pictures.picture(figure, scope, found, picture)
    return FigureResult(figure, figure.judge(found), sum(len(seeds) for seeds in declared.values()), picture)


def results(findings: Sequence[FigureResult], scope: Scope) -> dict[str, Any]:
    """JSON values; inf becomes null, NaN is omitted."""
    return {
        "gemps": version("gemps"),
        "torch": version("torch"),
        "python": platform.python_version(),
        "scope": scope.describe(),
        "figures": {
            one.figure.name: {
                "title": one.figure.title,
                "claim": one.figure.claim,
                "about": one.figure.about,
                "remark": one.figure.remark,
                "subtitle": one.figure.subtitle(scope),
                "picture": one.picture.name,
                "runs": one.runs,
                "verdicts": [
                    {
                        "claim": verdict.claim,
                        "met": verdict.met,
                        "must_hold": verdict.must_hold,
                        "numbers": {
                            row: {name: _number(value) for name, value in columns.items() if not math.isnan(value)}
                            for row, columns in verdict.numbers.items()
                        },
                    }
                    for verdict in one.verdicts
                ],
            }
            for one in findings
        },
    }


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
