"""Figures 9 and 10: pi by tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gem_reproduction import pictures
from gem_reproduction.figures.common import named
from gem_reproduction.figures.interface import Figure, Group, Verdict
from gem_reproduction.runs import Run, Scope

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_BOTH = (8, 16)
# Top of the scale.
_DARKEST = 1.0


class _HeatMap(Figure):
    workers: ClassVar[int]
    about = (
        "The paper shows AlexNet's layers; here they are those of the CNN of appendix A. The median of pi is over a "
        "tensor's elements with delta != 0, at a hundred commits of the first seed."
    )
    claim = "The median of pi by tensor, over server updates, is smaller with 16 workers than with 8."
    size = (8.0, 4.0)

    def subtitle(self, scope: Scope) -> str:
        return scope.beside().subtitle()

    def runs(self, scope: Scope) -> dict[str, tuple[Run, ...]]:
        return {named("gem", n): scope.beside().simulations(workers=n) for n in _BOTH}

    def judge(self, found: Mapping[str, Group]) -> list[Verdict]:
        means = {n: _mean(found[named("gem", n)]) for n in _BOTH}
        return [
            Verdict(
                "the mean of the medians, over tensors and the second half of the updates, is smaller with 16 workers",
                means[16] < means[8],
                {named("gem", n): {"mean of the medians": mean} for n, mean in means.items()},
                must_hold=False,
            )
        ]

    def draw(self, found: Mapping[str, Group], canvas: Canvas) -> None:
        medians = found[named("gem", self.workers)].outcomes[0].medians
        axes = canvas.add_subplot()
        values = np.array(medians.by_tensor, np.float64).T
        last = medians.commits[-1] + 1
        image = axes.imshow(
            values, aspect="auto", vmin=0, vmax=_DARKEST, cmap="viridis", extent=(0, last, len(values) - 0.5, -0.5)
        )
        pictures.axes_of(axes, "server updates", "")
        axes.grid(visible=False)
        axes.set_yticks(range(len(medians.tensors)), medians.tensors)
        canvas.colorbar(image, ax=axes, label=f"median of pi (up to {_DARKEST:g})")


class Figure9(_HeatMap):
    """8 workers."""

    name = "9"
    workers = 8
    title = "9 · Median of pi by tensor, 8 workers"


class Figure10(_HeatMap):
    """16 workers."""

    name = "10"
    workers = 16
    title = "10 · Median of pi by tensor, 16 workers"


def _mean(group: Group) -> float:
    """NaN: all deltas of a tensor are 0."""
    tables = [np.array(one.medians.by_tensor, np.float64) for one in group.outcomes]
    return float(np.nanmean([np.nanmean(table[len(table) // 2 :]) for table in tables]))
