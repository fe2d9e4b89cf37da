"""Figure 7: AlexNet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from gem_reproduction import pictures
from gem_reproduction.figures.common import draw_losses, losses, named
from gem_reproduction.figures.interface import Figure, Group, Verdict
from gem_reproduction.runs import Run, Scope

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_WORKERS = (8, 16)
_BATCH = 1024
_ETA = 0.01
_STEPS = 40
_QUICK_STEPS = 4


class Figure7(Figure):
    """8 against 16 workers."""

    name = "7"
    title = "7 · AlexNet with an effective batch of 1024, eta = 0.01, kappa = 1"
    claim = "AlexNet with an effective batch of 1024: 16 workers learn more a step than 8."
    about = (
        "The paper has photographs (ImageNet). Without --images FOLDER this figure has images that are made: 10 "
        "classes of 64 x 64 pixels, each with its faint pattern. It shows that a model of 57 million "
        "parameters is served, and which rule gains more in a step; it says nothing about photographs. One seed."
    )

    remark = (
        "AlexNet from PyTorch's first parameters needs hundreds of updates before its loss moves at eta 0.01. The "
        "quick form ends long before that, so its verdict says nothing but that both run; nor do images that are made "
        "decide what holds for photographs."
    )

    @override
    def subtitle(self, scope: Scope) -> str:
        images = "images of a folder" if scope.images else "images that are made (no photographs)"
        return f"alexnet on {images}, round-robin, 1 seed"

    def runs(self, scope: Scope) -> dict[str, tuple[Run, ...]]:
        """One seed: steps are slow."""
        steps = min(_QUICK_STEPS if scope.quick else _STEPS, scope.steps)
        images = {"task": "imagefolder", "dataset_dir": scope.images} if scope.images else {"dataset_dir": Path("data")}
        return {
            named("gem", n): scope.simulations(
                data="task" if scope.images else "patterns",
                large=True,
                workers=n,
                model="alexnet",
                eta=_ETA,
                batch_size=_BATCH // n,
                steps=steps,
                **images,
            )[:1]
            for n in _WORKERS
        }

    @override
    def judge(self, found: Mapping[str, Group]) -> list[Verdict]:
        names = [named("gem", n) for n in _WORKERS]
        few, many = (found[name].minibatch_loss for name in names)
        return [
            Verdict(
                "after as many worker steps the minibatches' loss is lower with 16 workers than with 8",
                many < few,
                losses(found, names),
                must_hold=False,
            )
        ]

    @override
    def draw(self, found: Mapping[str, Group], canvas: Canvas) -> None:
        colours = zip(_WORKERS, pictures.SHADES[1::2], strict=False)
        draw_losses(canvas.add_subplot(), found, {named("gem", n): (f"{n} workers", colour) for n, colour in colours})
