"""A reproduction: runs what the chosen figures need, judges them, draws them, and writes down what was found."""

import json
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gem_reproduction import drawing
from gem_reproduction.errors import ReproductionError
from gem_reproduction.executing import execute
from gem_reproduction.figures import Figure, Group, Verdict
from gem_reproduction.outcomes import Outcome
from gem_reproduction.runs import Run, Scope

RESULTS = "results.json"


@dataclass(frozen=True, slots=True)
class Finding:
    """A figure, what was found, and where its picture is."""

    figure: Figure
    verdicts: list[Verdict]
    runs: int
    picture: Path


def runs_of(figures: Sequence[Figure], scope: Scope) -> list[Run]:
    """What they need; a run that several figures need is there once."""
    runs = {run.key(): run for figure in figures for seeds in figure.runs(scope).values() for run in seeds}
    return list(runs.values())


def reproduce(
    figures: Sequence[Figure],
    scope: Scope,
    folder: Path,
    jobs: int,
    on_done: Callable[[Run, Outcome, bool], None] = lambda run, outcome, new: None,
) -> list[Finding]:
    """Run, judge, draw, and write `results.json`.

    Args:
        figures: of the registry.
        scope: how much, and on what.
        folder: for runs, pictures and results; runs that it has are not done again.
        jobs: processes at once.
        on_done: is told every run once: it, what came of it, and whether it was done just now.

    Raises:
        ReproductionError: a run cannot be done, or the folder cannot be written.
        ImportError: matplotlib is not installed.
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


def _find(figure: Figure, scope: Scope, outcomes: Mapping[str, Outcome], folder: Path) -> Finding:
    declared = figure.runs(scope)
    found = {name: Group([outcomes[run.key()] for run in seeds]) for name, seeds in declared.items()}
    picture = folder / f"{figure.name}.png"
    drawing.picture(figure, scope, found, picture)
    return Finding(figure, figure.judge(found), sum(len(seeds) for seeds in declared.values()), picture)


def results(findings: Sequence[Finding], scope: Scope) -> dict[str, Any]:
    """All that was found, as plain JSON values; an infinite number is null, and what is not known is left out."""
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
