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
    """The figures' runs."""
    runs = {run.key(): run for figure in figures for seeds in figure.runs(scope).values() for run in seeds}
    return list(runs.values())


def reproduce(
    figures: Sequence[Figure],
    scope: Scope,
    folder: Path,
    jobs: int,
    on_done: Callable[[Run, Outcome, bool], None] = lambda run, outcome, new: None,
) -> list[FigureResult]:
    """Run, judge, draw and write `results.json`.

    Runs in `folder` are reused. Raises ReproductionError, or ImportError without matplotlib.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        outcomes = execute(runs_of(figures, scope), folder, jobs, on_done)
        findings = [_find(figure, scope, outcomes, folder) for figure in figures]
        text = json.dumps(results(findings, scope), indent=1) + "\n"
        (folder / RESULTS).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ReproductionError(f"{folder} cannot be written: {error.strerror}; choose another --output") from None
    return findings


def _find(figure: Figure, scope: Scope, outcomes: Mapping[str, Outcome], folder: Path) -> FigureResult:
    declared = figure.runs(scope)
    found = {name: Group([outcomes[run.key()] for run in seeds]) for name, seeds in declared.items()}
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
