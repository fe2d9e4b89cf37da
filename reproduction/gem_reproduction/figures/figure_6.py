"""Figure 6: an excessive learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from typing_extensions import override

from gem_reproduction import pictures
from gem_reproduction.figures.common import draw_losses, losses, named, over_workers
from gem_reproduction.figures.interface import Figure, Group, Verdict
from gem_reproduction.runs import Run, Scope

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_WORKERS = (5, 10, 20)
_ETA = 0.1
_SGD = "momentum SGD"


class Figure6(Figure):
    """GEM, DOWNPOUR and momentum SGD."""

    name = "6"
    title = "6 · A misspecified learning rate, eta = 0.1"
    claim = "At eta 0.1 GEM with 5, 10 and 20 workers follows momentum SGD; DOWNPOUR does not."
    about = (
        "Loss against worker steps; momentum SGD is one process with mu = 0.9 and as many steps as one worker takes, "
        "on the batches of worker 0. GEM has n workers that do, and may be ahead: only falling behind is a failure."
    )
    size = (9.0, 4.0)

    @override
    def runs(self, scope: Scope) -> dict[str, tuple[Run, ...]]:
        rules = over_workers(scope, "gem", _WORKERS, eta=_ETA) | over_workers(scope, "downpour", _WORKERS, eta=_ETA)
        return rules | {_SGD: scope.momentum_sgd(eta=_ETA)}

    @override
    def judge(self, found: Mapping[str, Group]) -> list[Verdict]:
        names = [named("gem", n) for n in _WORKERS]
        many = [named("downpour", 20), named("gem", 20)]
        return [
            Verdict(
                "with 5, 10 and 20 workers GEM's L is at most 1.1 times that of momentum SGD",
                all(found[name].loss <= 1.1 * found[_SGD].loss for name in names),
                losses(found, [*names, _SGD]),
            ),
            Verdict(
                "with 20 workers DOWNPOUR's L is at least 10 times that of GEM",
                found[many[0]].loss >= 10 * found[many[1]].loss,
                losses(found, many),
            ),
        ]

    @override
    def draw(self, found: Mapping[str, Group], canvas: Canvas) -> None:
        for axes, rule in zip(canvas.subplots(1, 2, sharey=True), ("gem", "downpour"), strict=True):
            curves = {
                named(rule, n): (f"{pictures.NAMES[rule]}, {n} workers", colour)
                for n, colour in zip(_WORKERS, pictures.SHADES[1:], strict=False)
            }
            draw_losses(axes, found, curves | {_SGD: (_SGD, pictures.SGD)})
