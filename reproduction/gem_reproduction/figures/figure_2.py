"""Figure 2: a hundred workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from typing_extensions import override

from gem_reproduction import pictures
from gem_reproduction.figures.common import named
from gem_reproduction.figures.interface import Figure, Group, Verdict
from gem_reproduction.runs import Run, Scope

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_WORKERS = 100


class Figure2(Figure):
    """GEM with 100 workers."""

    name = "2"
    title = "2 · GEM with 100 workers"
    claim = "With 100 workers there is no instability; the paper's final test accuracy on MNIST is 99.38 %."
    about = "The accuracy is that of the task that was run, on its held-out samples."

    @override
    def runs(self, scope: Scope) -> dict[str, tuple[Run, ...]]:
        every = max(1, scope.steps // 20) * _WORKERS
        return {named("gem", _WORKERS): scope.simulations(workers=_WORKERS, evaluate_every=every)}

    @override
    def judge(self, found: Mapping[str, Group]) -> list[Verdict]:
        group = found[named("gem", _WORKERS)]
        last, middle = group.mean("minibatch_loss"), group.mean("middle")
        return [
            Verdict(
                "no gradient, loss or parameter is ever not finite",
                not group.diverged,
                {named("gem", _WORKERS): {"runs where one was": float(group.diverged)}},
            ),
            Verdict(
                "the loss over the last tenth of the commits is below that over the middle tenth",
                last < middle,
                {
                    named("gem", _WORKERS): {
                        "last tenth": last,
                        "middle tenth": middle,
                        "L": group.loss,
                        "accuracy": sum(one.evaluations[-1].accuracy for one in group.outcomes) / len(group.outcomes),
                    }
                },
            ),
        ]

    @override
    def draw(self, found: Mapping[str, Group], canvas: Canvas) -> None:
        left, right = canvas.subplots(1, 2)
        outcomes = found[named("gem", _WORKERS)].outcomes
        colour = pictures.RULES["gem"]
        steps = [one.curves.step for one in outcomes]
        pictures.over_seeds(left, steps, [one.curves.loss for one in outcomes], "100 workers", colour)
        pictures.axes_of(left, "worker steps", "training loss (minibatches)", x_scale="log", y_scale="log")
        places = [[at.commits / _WORKERS for at in one.evaluations] for one in outcomes]
        accuracies = [[at.accuracy for at in one.evaluations] for one in outcomes]
        pictures.over_seeds(right, places, accuracies, "100 workers", colour)
        pictures.axes_of(right, "worker steps", "accuracy on held-out samples")
