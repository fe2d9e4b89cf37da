"""Figure 3: pi as workers are added."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from typing_extensions import override

from gem_reproduction import pictures
from gem_reproduction.figures.common import WORKERS, medians_of_pi, named, over_workers
from gem_reproduction.figures.interface import MEDIAN, Figure, Group, Verdict
from gem_reproduction.runs import Run, Scope

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


class Figure3(Figure):
    """Median and mean of pi, and blocked fraction."""

    name = "3"
    title = "3 · pi against worker steps"
    claim = "The median of pi falls as workers are added, from 5 to 30, and changes over time."
    about = (
        "The runs of 1a. pi over the elements with delta != 0. In a round-robin order its median is near 0 from 10 "
        "workers on, so its mean and the fraction that is blocked (pi = 0) are shown as well, and judged."
    )
    remark = (
        "Half of the elements and more are blocked at any moment, so the median is 0 nearly all the time; the "
        "paper's, on a scale from 0 to 1, is not. Its workers arrived in another order."
    )
    size = (9.0, 4.0)

    @override
    def runs(self, scope: Scope) -> dict[str, tuple[Run, ...]]:
        return over_workers(scope, "gem")

    @override
    def judge(self, found: Mapping[str, Group]) -> list[Verdict]:
        groups = {name: found[name] for name in (named("gem", n) for n in WORKERS)}
        mean = {name: group.mean("mean_pi") for name, group in groups.items()}
        blocked = {name: group.mean("blocked_fraction") for name, group in groups.items()}
        return [
            Verdict(
                "the mean of pi falls from 5 to 10, 20 and 30 workers",
                all(after < before for before, after in pairwise(mean.values())),
                {name: {"mean of pi": mean[name], MEDIAN: group.median_pi} for name, group in groups.items()},
            ),
            Verdict(
                "the blocked fraction rises from 5 to 10, 20 and 30 workers",
                all(after > before for before, after in pairwise(blocked.values())),
                {name: {"blocked": value} for name, value in blocked.items()},
            ),
        ]

    @override
    def draw(self, found: Mapping[str, Group], canvas: Canvas) -> None:
        median, mean, blocked = canvas.subplots(1, 3)
        for n, colour in zip(WORKERS, pictures.SHADES, strict=False):
            outcomes = found[named("gem", n)].outcomes
            label = f"{n} workers"
            pictures.over_seeds(median, *medians_of_pi(found[named("gem", n)], n), label, colour)
            steps = [one.curves.step for one in outcomes]
            pictures.over_seeds(mean, steps, [one.curves.mean_pi for one in outcomes], label, colour)
            pictures.over_seeds(blocked, steps, [one.curves.blocked_fraction for one in outcomes], label, colour)
        pictures.axes_of(median, "worker steps", "median of pi")
        pictures.axes_of(mean, "worker steps", "mean of pi")
        pictures.axes_of(blocked, "worker steps", "blocked fraction (pi = 0)")
        pictures.legend(mean)
