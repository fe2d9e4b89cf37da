"""Figure 1: training loss of three rules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from gem_reproduction import pictures
from gem_reproduction.figures.common import WORKERS, draw_losses, losses, named, never_diverges, over_workers
from gem_reproduction.figures.interface import Figure, Group, Verdict
from gem_reproduction.runs import Run, Scope

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

# Random order.
_EXPONENTIAL: dict[str, Any] = {"order": "fifo", "compute_time": "exponential:1"}
_BY_CHANCE = {rule: f"{named(rule, 30)}, exponential compute times" for rule in ("downpour", "gem")}
_EACH = "Each worker takes the same number of steps, so n workers apply n times as many updates."


class _LossOfOneRule(Figure):
    rule: ClassVar[str]

    def runs(self, scope: Scope) -> dict[str, tuple[Run, ...]]:
        return over_workers(scope, "gem") | over_workers(scope, self.rule)

    def draw(self, found: Mapping[str, Group], canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        # Equal scales.
        every = [value for n in WORKERS for one in found[named("gem", n)].outcomes for value in one.curves.loss]
        finite = [value for value in every if math.isfinite(value)]
        axes.set_ylim(0.8 * min(finite), 2 * finite[0])
        colours = dict(zip(WORKERS, pictures.SHADES, strict=False))
        draw_losses(axes, found, {named(self.rule, n): (f"{n} workers", colours[n]) for n in WORKERS})


class Figure1a(_LossOfOneRule):
    """GEM."""

    name = "1a"
    rule = "gem"
    title = "1a · GEM: training loss against worker steps"
    claim = "GEM's training loss has one profile for 5, 10, 20 and 30 workers, and its variance shrinks with them."
    about = _EACH
    remark = (
        "The loss does not stay the same, it falls with the number of workers: they apply more updates in as many "
        "steps. That is no failure of stability, which is what the claim is about."
    )

    @override
    def judge(self, found: Mapping[str, Group]) -> list[Verdict]:
        names = [named("gem", n) for n in WORKERS]
        few, *more = (found[name].loss for name in names)
        return [
            never_diverges(found, names, "GEM"),
            Verdict(
                "L of 10, 20 and 30 workers is at most 1.1 times that of 5",
                all(loss <= 1.1 * few for loss in more),
                losses(found, names),
            ),
        ]


class Figure1b(_LossOfOneRule):
    """DOWNPOUR."""

    name = "1b"
    rule = "downpour"
    title = "1b · DOWNPOUR: training loss against worker steps"
    claim = "DOWNPOUR degrades as workers are added, and fails with 20 or 30."
    about = (
        f"{_EACH} When DOWNPOUR fails depends on the order in which commits arrive: this one is constant. With "
        "exponential compute times, served as they come, 30 workers are run as well, under both rules."
    )
    remark = (
        "That DOWNPOUR fails is a matter of order: in round-robin each of 30 workers has staleness 29, and their "
        "deltas come to nearly one step that is 30 times too large. With exponential compute times staleness is as "
        "large on average, but half of the commits have less than 20, and it learns as well as GEM does in that "
        "order."
    )

    @override
    def runs(self, scope: Scope) -> dict[str, tuple[Run, ...]]:
        by_chance = {
            name: scope.beside().simulations(rule, workers=30, **_EXPONENTIAL) for rule, name in _BY_CHANCE.items()
        }
        return super().runs(scope) | by_chance

    @override
    def judge(self, found: Mapping[str, Group]) -> list[Verdict]:
        names = [named("downpour", 30), named("gem", 30)]
        ours, gem = (found[name].loss for name in names)
        return [
            Verdict("with 30 workers L is at least 10 times that of GEM", ours >= 10 * gem, losses(found, names)),
            Verdict(
                "the same where compute times are exponential and commits are served as they come",
                found[_BY_CHANCE["downpour"]].loss >= 10 * found[_BY_CHANCE["gem"]].loss,
                losses(found, list(_BY_CHANCE.values())),
                must_hold=False,
            ),
        ]


class Figure1c(_LossOfOneRule):
    """Adaptive staleness."""

    name = "1c"
    rule = "adaptive-staleness"
    title = "1c · Adaptive staleness: training loss against worker steps"
    claim = "Dividing each delta by its staleness (and 1) is stable and slow, the slower the more workers."
    about = _EACH
    remark = (
        "In round-robin n workers apply n deltas in each worker step, each divided by n: the curves are nearly the "
        "same for every n, those of plain SGD at eta 0.05 with a batch n times as large, which in so few steps learns "
        "little. Slower with more workers it is per update, not per worker step."
    )

    @override
    def judge(self, found: Mapping[str, Group]) -> list[Verdict]:
        names = [named(self.rule, n) for n in WORKERS]
        gem = [named("gem", n) for n in WORKERS]
        pairs = zip(names, gem, strict=True)
        return [
            Verdict(
                "adaptive staleness never diverges: all values are finite",
                not any(found[name].diverged for name in names),
                {name: {"runs that diverged": float(found[name].diverged)} for name in names},
            ),
            Verdict(
                "with 5, 10, 20 and 30 workers L is at least 4 times that of GEM",
                all(found[ours].loss >= 4 * found[theirs].loss for ours, theirs in pairs),
                losses(found, [*names, *gem]),
            ),
        ]


class Figure1d(Figure):
    """All three."""

    name = "1d"
    title = "1d · Final training loss against the number of workers"
    claim = "The final losses of the three rules: GEM's is the lowest, and stays so as workers are added."
    about = f"The runs of 1a, 1b and 1c. {_EACH}"
    _rules = ("gem", "downpour", "adaptive-staleness")

    def runs(self, scope: Scope) -> dict[str, tuple[Run, ...]]:
        """Those of 1a to 1c."""
        return {name: runs for rule in self._rules for name, runs in over_workers(scope, rule).items()}

    @override
    def judge(self, found: Mapping[str, Group]) -> list[Verdict]:
        lowest = all(
            found[named("gem", n)].loss < found[named(rule, n)].loss for n in WORKERS for rule in self._rules[1:]
        )
        names = [named(rule, n) for n in WORKERS for rule in self._rules]
        return [Verdict("GEM has the lowest L with 5, 10, 20 and 30 workers", lowest, losses(found, names))]

    @override
    def draw(self, found: Mapping[str, Group], canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        for rule in self._rules:
            values = [[one.loss for one in found[named(rule, n)].outcomes] for n in WORKERS]
            pictures.bars_over_seeds(axes, WORKERS, values, pictures.NAMES[rule], pictures.RULES[rule])
        pictures.axes_of(axes, "workers", "final training loss, L", y_scale="log")
        axes.set_xticks(WORKERS)
        pictures.legend(axes)
