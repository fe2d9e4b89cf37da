"""Figure 5: thirty epochs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from gem_reproduction import pictures
from gem_reproduction.figures.common import named
from gem_reproduction.figures.interface import Figure, Group, Verdict
from gem_reproduction.runs import Run, Scope

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_EPOCHS = 30
_WORKERS = 10
_BATCH = 64
# Ratio to the minimum that counts as risen.
_RISEN = 1.25
_SGD = "momentum SGD"
# Limit, in multiples of the scope's steps.
_QUICK_STEPS = 4


class Figure5(Figure):
    """Overfitting."""

    name = "5"
    title = "5 · Training and validation loss over 30 epochs"
    claim = "Over 30 epochs momentum SGD overfits: its validation loss rises. GEM's does not."
    about = (
        f"Validation samples are the held-out ones. GEM has {_WORKERS} workers, each of which goes over the whole set "
        "30 times; momentum SGD is one process that does. Evaluated after each epoch, without dropout."
    )
    remark = (
        "Digits of 8 x 8 pixels are too easy, and the network drops half of its features: within 30 epochs neither "
        "method's validation loss rises by much, and what it rises differs between seeds."
    )
    size = (9.0, 4.0)

    @override
    def subtitle(self, scope: Scope) -> str:
        return scope.beside().subtitle()

    @override
    def runs(self, scope: Scope) -> dict[str, tuple[Run, ...]]:
        epoch = _epoch(scope.task, scope.dataset_dir)
        steps = min(_EPOCHS * epoch, _QUICK_STEPS * scope.steps) if scope.quick else _EPOCHS * epoch
        return {
            named("gem", _WORKERS): scope.beside().simulations(
                workers=_WORKERS, steps=steps, evaluate_every=epoch * _WORKERS
            ),
            _SGD: scope.beside().momentum_sgd(steps=steps, evaluate_every=epoch),
        }

    @override
    def judge(self, found: Mapping[str, Group]) -> list[Verdict]:
        rises = {name: _rise(group) for name, group in found.items()}
        gem, sgd = rises[named("gem", _WORKERS)], rises[_SGD]
        numbers = {
            name: {"last over least": rises[name], "last": _course(group)[-1], "least": min(_course(group))}
            for name, group in found.items()
        }
        return [
            Verdict(
                f"momentum SGD's validation loss ends at least {_RISEN} times its least", sgd >= _RISEN, numbers, False
            ),
            Verdict(f"GEM's validation loss ends less than {_RISEN} times its least", gem < _RISEN, numbers, False),
        ]

    @override
    def draw(self, found: Mapping[str, Group], canvas: Canvas) -> None:
        training, validation = canvas.subplots(1, 2)
        looks = {named("gem", _WORKERS): ("GEM, 10 workers", pictures.RULES["gem"]), _SGD: (_SGD, pictures.SGD)}
        for name, (label, colour) in looks.items():
            outcomes = found[name].outcomes
            epochs = [[float(at + 1) for at in range(len(one.evaluations))] for one in outcomes]
            losses = [[at.training_loss for at in one.evaluations] for one in outcomes]
            pictures.over_seeds(training, epochs, losses, label, colour)
            losses = [[at.test_loss for at in one.evaluations] for one in outcomes]
            pictures.over_seeds(validation, epochs, losses, label, colour)
        pictures.axes_of(training, "epochs", "training loss", y_scale="log")
        pictures.axes_of(validation, "epochs", "validation loss", y_scale="log")
        pictures.legend(training)


@cache
def _epoch(task: str, dataset_dir: Path) -> int:
    from gem_worker.tasks import TaskOptions, create_task, steps_per_epoch  # imports torch

    return steps_per_epoch(len(create_task(task, TaskOptions(dataset_dir=dataset_dir)).train), _BATCH)


def _course(group: Group) -> list[float]:
    length = min(len(one.evaluations) for one in group.outcomes)
    losses = [[at.test_loss for at in one.evaluations[:length]] for one in group.outcomes]
    return [float(loss) for loss in np.mean(losses, axis=0)]


def _rise(group: Group) -> float:
    course = _course(group)
    return course[-1] / min(course)
