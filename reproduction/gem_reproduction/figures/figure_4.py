"""Figure 4: a fixed effective batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from typing_extensions import override

from gem_reproduction import pictures
from gem_reproduction.figures.common import named
from gem_reproduction.figures.interface import Figure, Group, Verdict
from gem_reproduction.outcomes import Outcome
from gem_reproduction.runs import Run, Scope

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_WORKERS = (1, 2, 4, 8, 16)
_BATCH = 256
# Chance is 2.3.
_LOSS = 0.5
# Slow cases, and their factor on steps.
_LATE, _MORE_STEPS = (1, 2), 2


class Figure4(Figure):
    """Time to a loss."""

    name = "4"
    title = "4 · Time to a loss, at a fixed effective batch of 256"
    claim = "With an effective batch of 256 split over n workers, the time to a loss falls about with 1/n."
    about = (
        "Virtual time: a step of the whole batch takes 1, one of 256/n samples 1/n; network and server take none. The "
        f"time to a loss is when the training loss of the central variable, evaluated every 5 steps, first is {_LOSS}."
    )
    remark = (
        "The time falls faster than 1/n: smaller batches make more updates of the same samples, and each worker's "
        "moment adds energy."
    )
    size = (9.0, 4.0)

    @override
    def runs(self, scope: Scope) -> dict[str, tuple[Run, ...]]:
        return {
            named("gem", n): scope.simulations(
                workers=n,
                batch_size=_BATCH // n,
                compute_time=f"constant:{1 / n}",
                steps=scope.steps * (_MORE_STEPS if n in _LATE else 1),
                evaluate_every=5 * n,
            )
            for n in _WORKERS
        }

    @override
    def judge(self, found: Mapping[str, Group]) -> list[Verdict]:
        times = {n: time_to(found[named("gem", n)], _LOSS) for n in _WORKERS}
        numbers = {
            named("gem", n): {
                f"virtual time to {_LOSS}": time,
                "times as fast as 1": times[1] / time if math.isfinite(times[1] * time) else math.nan,
            }
            for n, time in times.items()
        }
        return [
            Verdict(
                f"8 workers need at most 1/5 of the virtual time that one needs to reach {_LOSS}",
                math.isfinite(times[1]) and times[8] <= times[1] / 5,
                numbers,
            )
        ]

    @override
    def draw(self, found: Mapping[str, Group], canvas: Canvas) -> None:
        left, right = canvas.subplots(1, 2)
        for n, colour in zip(_WORKERS, pictures.SHADES, strict=True):
            outcomes = found[named("gem", n)].outcomes
            places = [[at.at for at in one.evaluations] for one in outcomes]
            values = [[at.training_loss for at in one.evaluations] for one in outcomes]
            pictures.over_seeds(left, places, values, f"{n} worker{'' if n == 1 else 's'}", colour)
        left.axhline(_LOSS, color="#888888", linewidth=0.8, linestyle=":")
        pictures.axes_of(left, "virtual time", "training loss", x_scale="log", y_scale="log")
        pictures.legend(left)
        times = [[one_time_to(one, _LOSS) for one in found[named("gem", n)].outcomes] for n in _WORKERS]
        pictures.bars_over_seeds(right, _WORKERS, times, f"time to {_LOSS}", pictures.RULES["gem"])
        first = time_to(found[named("gem", 1)], _LOSS)
        if math.isfinite(first):
            right.plot(_WORKERS, [first / n for n in _WORKERS], color="#888888", linestyle=":", label="1/n")
        pictures.axes_of(right, "workers", f"virtual time to {_LOSS}", x_scale="log", y_scale="log")
        pictures.legend(right)


def time_to(group: Group, loss: float) -> float:
    """Geometric mean over seeds, maybe inf."""
    times = [one_time_to(one, loss) for one in group.outcomes]
    return math.exp(sum(map(math.log, times)) / len(times)) if all(map(math.isfinite, times)) else math.inf


def one_time_to(outcome: Outcome, loss: float) -> float:
    """First time, else inf."""
    return next((one.at for one in outcome.evaluations if one.training_loss <= loss), math.inf)
