"""Slow, dying and late workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from gem_reproduction import pictures
from gem_reproduction.figures.arrivals import failed, shorter, words
from gem_reproduction.figures.interface import Figure, Group, Verdict
from gem_reproduction.runs import Run, Scope

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_WORKERS = 16
_RULES: Mapping[str, str] = {
    "gem": pictures.RULES["gem"], "downpour": pictures.RULES["downpour"], "dana": "#aa3377",
}  # fmt: skip
_EVEN = "all alike"
_CASES = (_EVEN, "half 4 times slower", "half die in the middle", "half join in the middle")
# Allowed ratio of losses.
_AT_MOST = 3.0


class Heterogeneity(Figure):
    """Three rules in four cases."""

    name = "heterogeneity"
    title = f"heterogeneity · Slow, dying and late workers, {_WORKERS} in all"
    claim = "GEM bears workers that are slow, die, or join late."
    about = (
        "Not a figure of the paper. Every run ends at the same virtual time, in which a worker that is not slow and "
        "there from the start makes nine tenths of the steps of other figures; compute times are lognormal (median "
        "1, sigma 0.5), commits are served as they arrive. Thus each of the three cases has fewer gradients than the "
        "first. The quick form has one seed."
    )
    remark = (
        "GEM loses a third where half the workers are slow, and less where they die or come late, for 5/8 and 3/4 of "
        "the gradients; workers that join late or are slow do no harm. DANA has the lowest loss in all four cases with "
        "these 16 workers; from 30 on it learns nothing where the order is constant or a quarter is slow (see rules)."
    )
    size = (9.0, 4.0)

    @override
    def subtitle(self, scope: Scope) -> str:
        return words(shorter(scope), "FIFO, lognormal compute times").replace("steps a worker", "virtual seconds")

    @override
    def runs(self, scope: Scope) -> dict[str, tuple[Run, ...]]:
        short = shorter(scope)
        half = f"{_WORKERS // 2}-{_WORKERS - 1}"
        middle = f"{half}@{short.steps / 2:g}"
        changes: Mapping[str, dict[str, Any]] = dict(
            zip(_CASES, ({}, {"slow": f"{half}x4"}, {"die": middle}, {"join": middle}), strict=True)
        )
        return {
            _case_name(rule, case): short.simulations(
                rule,
                workers=_WORKERS,
                seconds=float(short.steps),
                order="fifo",
                compute_time="lognormal:1,0.5",
                **changes[case],
            )
            for rule in _RULES
            for case in _CASES
        }

    @override
    def judge(self, found: Mapping[str, Group]) -> list[Verdict]:
        table = {
            rule: {f"L, {case}": found[_case_name(rule, case)].loss for case in _CASES}
            | {f"accuracy, {case}": found[_case_name(rule, case)].accuracy for case in _CASES}
            | {"failed": float(sum(failed(found[_case_name(rule, case)]) for case in _CASES))}
            for rule in _RULES
        }
        even = found[_case_name("gem", _EVEN)].loss
        return [
            Verdict(
                f"GEM fails nowhere, and its L is at most {_AT_MOST:g} times that of workers that are all alike",
                not table["gem"]["failed"]
                and all(found[_case_name("gem", case)].loss <= _AT_MOST * even for case in _CASES),
                table,
                must_hold=False,
            ),
            Verdict(
                "in each case GEM's L is at most that of DOWNPOUR and of DANA",
                all(
                    found[_case_name("gem", case)].loss <= found[_case_name(rule, case)].loss
                    for case in _CASES
                    for rule in _RULES
                ),
                {
                    rule: {f"commits, {case}": found[_case_name(rule, case)].mean("commits") for case in _CASES}
                    for rule in _RULES
                },
                must_hold=False,
            ),
        ]

    @override
    def draw(self, found: Mapping[str, Group], canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        for shift, (rule, colour) in enumerate(_RULES.items()):
            losses = [[one.loss for one in found[_case_name(rule, case)].outcomes] for case in _CASES]
            places = [place + 0.12 * (shift - 1) for place in range(len(_CASES))]
            pictures.bars_over_seeds(axes, places, losses, pictures.NAMES.get(rule, rule), colour)
        pictures.axes_of(axes, "", "final training loss, L", y_scale="log")
        axes.set_xticks(range(len(_CASES)), _CASES)
        pictures.legend(axes)


def _case_name(rule: str, case: str) -> str:
    return f"{rule}, {case}"
