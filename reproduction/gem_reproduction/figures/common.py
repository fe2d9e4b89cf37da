"""Shared helpers of figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gem_reproduction import pictures
from gem_reproduction.figures.interface import Group, Verdict
from gem_reproduction.runs import Run, Scope

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WORKERS = (5, 10, 20, 30)


def named(what: str, workers: int) -> str:
    """A run's name in `Figure.runs`."""
    return f"{pictures.NAMES.get(what, what)}, {workers} worker{'' if workers == 1 else 's'}"


def over_workers(
    scope: Scope, rule: str, workers: Sequence[int] = WORKERS, **settings: Any
) -> dict[str, tuple[Run, ...]]:
    """Declare a rule with each number of workers."""
    return {named(rule, n): scope.simulations(rule, workers=n, **settings) for n in workers}


def never_diverges(found: Mapping[str, Group], names: Sequence[str], what: str) -> Verdict:
    """No run failed."""
    numbers = {name: {"runs that failed": float(found[name].failures)} for name in names}
    return Verdict(
        f"{what} never diverges: all values are finite, and every run ends better than chance",
        not any(found[name].failures for name in names),
        numbers,
    )


def losses(found: Mapping[str, Group], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """L and late minibatch loss by name."""
    return {name: {"L": found[name].loss, "minibatches": found[name].minibatch_loss} for name in names}


def medians_of_pi(group: Group, workers: int) -> tuple[list[list[float]], list[list[float]]]:
    """(worker steps, median of pi) per seed.

    Omits first commits, where pi is near kappa.
    """
    kept = [
        [
            (commits / workers, median)
            for commits, median in zip(one.commits, one.whole, strict=True)
            if commits >= 2 * workers
        ]
        for one in (outcome.medians for outcome in group.outcomes)
    ]
    return [[step for step, _ in one] for one in kept], [[median for _, median in one] for one in kept]


def draw_losses(axes: Axes, found: Mapping[str, Group], curves: Mapping[str, tuple[str, str]]) -> None:
    """Plot minibatch loss; `curves`: label and colour by name."""
    for name, (label, colour) in curves.items():
        outcomes = found[name].outcomes
        pictures.over_seeds(
            axes, [one.curves.step for one in outcomes], [one.curves.loss for one in outcomes], label, colour
        )
    pictures.axes_of(axes, "worker steps", "training loss (minibatches)", x_scale="log", y_scale="log")
    pictures.legend(axes)
