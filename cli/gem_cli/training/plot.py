"""Draws plot.png."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gem_cli import status_view

Metrics = Sequence[Mapping[str, Any]]


def draw(metrics: Metrics, title: str, path: Path) -> None:
    """Write the plot. Raises ModuleNotFoundError without matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    seconds = _seconds(metrics)

    figures = [status_view.figures(line) for line in metrics]

    def series(name: str) -> list[float]:
        return [float("nan") if (value := line[name]) is None else float(value) for line in figures]

    def over_workers(choose: Callable[[list[float]], float]) -> list[float]:
        return [choose([float(one["staleness_last"]) for one in line.get("workers", ())] or [0.0]) for line in metrics]

    figure = Figure(figsize=(11, 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    (loss, speed), (staleness, energy) = figure.subplots(2, 2, sharex=True)
    figure.suptitle(title, fontsize=13, fontweight="bold", x=0.01, ha="left")

    loss.plot(seconds, series("loss"), color=_BLUE)
    loss.set_title("training loss (newest commit of each worker)")
    losses = [one for one in series("loss") if one > 0]
    if losses and max(losses) > 20 * min(losses):
        loss.set_yscale("log")

    speed.plot(seconds, [float(line.get("commits_per_second", 0)) for line in metrics], color=_ORANGE)
    speed.set_title("updates a second")
    speed.set_ylim(bottom=0)

    staleness.fill_between(seconds, over_workers(min), over_workers(max), color=_GREEN, alpha=0.15, linewidth=0)
    staleness.plot(seconds, series("staleness"), color=_GREEN)
    staleness.set_title("staleness, in commits (mean; band: last commit of each worker)")
    staleness.set_ylim(bottom=0)

    energy.plot(seconds, series("mean_pi"), color=_PURPLE, label="mean pi")
    energy.plot(seconds, series("blocked"), color=_RED, linestyle="--", label="blocked fraction")
    energy.set_title("pi: by how much deltas are scaled")
    energy.set_ylim(bottom=0)
    energy.legend(frameon=False)

    for axes in (loss, speed, staleness, energy):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.title.set_fontsize(10)
        axes.set_xlim(left=0)
    for axes in (staleness, energy):
        axes.set_xlabel("seconds of training")
    figure.savefig(path, dpi=120)


def _seconds(metrics: Metrics) -> list[float]:
    seconds: list[float] = []
    before = offset = 0.0
    for line in metrics:
        now = float(line.get("run_seconds", 0))
        if now < before:
            offset += before
        seconds.append(offset + now)
        before = now
    return seconds


_BLUE, _ORANGE, _GREEN, _RED, _PURPLE = "#4477aa", "#ee7733", "#228833", "#cc3311", "#aa3377"
