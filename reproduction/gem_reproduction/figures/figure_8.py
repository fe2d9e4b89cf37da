"""Figure 8: kappa."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from gem_reproduction import drawing
from gem_reproduction.figures.common import draw_losses, losses
from gem_reproduction.figures.interface import Figure, Group, Verdict
from gem_reproduction.runs import Run, Scope

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_KAPPAS = (1, 2, 3, 4)
_WORKERS = 10


class Figure8(Figure):
    """GEM with kappa from 1 to 4."""

    name = "8"
    title = f"8 · The energy proxy's amplification kappa, {_WORKERS} workers"
    claim = "From kappa 1 to 3 learning is faster and the median of pi larger; kappa 4 begins to suffer."
    about = "kappa 1 is the run of 1a."
    size = (9.0, 4.0)

    def runs(self, scope: Scope) -> dict[str, tuple[Run, ...]]:
        """kappa 1 without naming it: the default, and figure 1a's run."""
        settings = {kappa: {} if kappa == 1 else {"rule_settings": {"kappa": float(kappa)}} for kappa in _KAPPAS}
        return {_named(kappa): scope.simulations(workers=_WORKERS, **settings[kappa]) for kappa in _KAPPAS}

    def judge(self, found: Mapping[str, Group]) -> list[Verdict]:
        """2 beats 1, 4 suffers, pi rises."""
        loss = {kappa: found[_named(kappa)].loss for kappa in _KAPPAS}
        pi = {kappa: found[_named(kappa)].mean("mean_pi") for kappa in _KAPPAS}
        numbers = losses(found, [_named(kappa) for kappa in _KAPPAS])
        medians = {f"median of pi: {_named(kappa)}": found[_named(kappa)].median_pi for kappa in _KAPPAS}
        return [
            Verdict("L with kappa 2 is below that with kappa 1", loss[2] < loss[1], numbers),
            Verdict(
                "the mean of pi rises with kappa",
                all(after > before for before, after in pairwise(pi.values())),
                {f"mean of pi: {_named(kappa)}": value for kappa, value in pi.items()} | medians,
            ),
            Verdict(
                "L with kappa 4 is above the lower of those with kappa 2 and 3", loss[4] > min(loss[2], loss[3]), numbers
            ),
        ]

    def draw(self, found: Mapping[str, Group], canvas: Canvas) -> None:
        """Loss, and the median of pi."""
        left, right = canvas.subplots(1, 2)
        colours = dict(zip(_KAPPAS, drawing.SHADES, strict=False))
        draw_losses(left, found, {_named(kappa): (_named(kappa), colour) for kappa, colour in colours.items()})
        for kappa, colour in colours.items():
            outcomes = found[_named(kappa)].outcomes
            steps = [one.curves.step for one in outcomes]
            drawing.over_seeds(right, steps, [one.curves.mean_pi for one in outcomes], f"kappa {kappa}, mean", colour)
            places = [[(commits + 1) / _WORKERS for commits in one.medians.commits] for one in outcomes]
            medians = [one.medians.whole for one in outcomes]
            drawing.over_seeds(right, places, medians, f"kappa {kappa}, median", colour, "--")
        drawing.axes_of(right, "worker steps", "pi")
        drawing.legend(right, ncols=2)


def _named(kappa: int) -> str:
    return f"kappa {kappa}"
