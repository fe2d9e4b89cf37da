"""GEM with more workers at equal samples."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from typing_extensions import override

from gem_reproduction import pictures
from gem_reproduction.figures.arrivals import shorter
from gem_reproduction.figures.common import named
from gem_reproduction.figures.interface import Figure, Group, Verdict
from gem_reproduction.runs import Run, Scope

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_WORKERS = (1, 4, 16, 32)
_MOST = max(_WORKERS)


class EqualSamples(Figure):
    """n workers take 1/n of the steps each."""

    name = "samples"
    title = "samples · Training loss against samples, and against worker steps"
    claim = "At equal samples, the more workers the higher L."
    about = (
        "Not a figure of the paper, whose curves are against worker steps. A run of n workers has 1/n of the steps a "
        "worker, so all runs see as many samples. The quick form has one seed."
    )
    remark = (
        "Workers save steps, not samples: 32 workers end with 11 times the training loss of one that saw as much, and "
        "against worker steps (right) the order of the curves is the reverse. The held-out loss does not follow: one "
        "worker's is the highest."
    )
    size = (9.0, 4.0)

    @override
    def subtitle(self, scope: Scope) -> str:
        short = shorter(scope)
        return f"{short.subtitle().replace(f'{short.steps} steps', f'{_MOST * short.steps} commits')}"

    @override
    def runs(self, scope: Scope) -> dict[str, tuple[Run, ...]]:
        short = shorter(scope)
        return {named("gem", n): short.simulations(workers=n, steps=short.steps * _MOST // n) for n in _WORKERS}

    @override
    def judge(self, found: Mapping[str, Group]) -> list[Verdict]:
        groups = {named("gem", n): found[named("gem", n)] for n in _WORKERS}
        return [
            Verdict(
                "at equal samples L rises from 1 to 4, 16 and 32 workers",
                all(few.loss < more.loss for few, more in pairwise(groups.values())),
                {
                    name: {"L": group.loss, "held-out loss": group.test_loss, "accuracy": group.accuracy}
                    for name, group in groups.items()
                },
                must_hold=False,
            )
        ]

    @override
    def draw(self, found: Mapping[str, Group], canvas: Canvas) -> None:
        left, right = canvas.subplots(1, 2, sharey=True)
        for n, colour in zip(_WORKERS, pictures.SHADES[1:], strict=True):
            curves = [one.curves for one in found[named("gem", n)].outcomes]
            label = f"{n} worker{'' if n == 1 else 's'}"
            losses = [one.loss for one in curves]
            pictures.over_seeds(left, [[n * step for step in one.step] for one in curves], losses, label, colour)
            pictures.over_seeds(right, [one.step for one in curves], losses, label, colour)
        pictures.axes_of(left, "batches, of all workers together", "training loss (minibatches)", y_scale="log")
        pictures.axes_of(right, "worker steps", "", x_scale="log", y_scale="log")
        pictures.legend(right)
