"""Draws plot.png."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gem_cli import status_view
from gem_cli.training.metrics_file import elapsed

Metrics = Sequence[Mapping[str, Any]]


def draw(metrics: Metrics, title: str, path: Path, *, test_loss: float | None = None) -> None:
    """Write the plot. Raises ModuleNotFoundError without matplotlib.

    Args:
        metrics: lines of metrics.jsonl, at least one.
        title: the title.
        path: the PNG file.
        test_loss: loss of the final parameters on held-out samples, if it is known.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    seconds = elapsed(metrics)
    figures = [status_view.figures(line) for line in metrics]

    def series(name: str) -> list[float]:
        return [float("nan") if (value := line[name]) is None else float(value) for line in figures]

    def over_workers(choose: Callable[[list[float]], float]) -> list[float]:
        return [
            choose([float(one.get("staleness_last", 0)) for one in line.get("workers", ())] or [0.0])
            for line in metrics
        ]

    figure = Figure(figsize=(11, 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    (loss, speed), (staleness, energy) = figure.subplots(2, 2, sharex=True)
    figure.suptitle(title, fontsize=13, fontweight="bold", x=0.01, ha="left")

    loss.plot(seconds, series("loss"), color=_BLUE, label="training, newest commits")
    held_out = held_out_losses(metrics)
    if test_loss is not None:
        held_out.append((seconds[-1], test_loss))
    if held_out:
        style = {"color": _ORANGE, "marker": "o", "markersize": 4, "linestyle": "--", "linewidth": 1.2}
        loss.plot(*zip(*held_out, strict=True), **style, label="held-out samples")
    loss.set_title("loss")
    losses = [one for one in (*series("loss"), *(value for _, value in held_out)) if one > 0]
    if losses and max(losses) > 20 * min(losses):
        loss.set_yscale("log")

    speed.plot(seconds, [float(line.get("commits_per_second", 0)) for line in metrics], color=_TEAL)
    speed.set_title("updates a second, over ten seconds")
    speed.set_ylim(bottom=0)

    band = {"color": _GREEN, "alpha": 0.15, "linewidth": 0}
    staleness.fill_between(seconds, over_workers(min), over_workers(max), **band, label="lowest to highest")
    staleness.plot(seconds, series("staleness"), color=_GREEN, label="mean")
    staleness.set_title("staleness of the newest commits")
    staleness.set_ylim(bottom=0)

    energy.plot(seconds, series("mean_pi"), color=_PURPLE, label="mean pi")
    energy.plot(seconds, series("blocked"), color=_RED, linestyle="--", label="blocked fraction")
    energy.set_title("pi of the newest commits")
    energy.set_ylim(bottom=0)

    for axes in (loss, speed, staleness, energy):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(axes.get_title(), loc="left", fontsize=10)
        axes.set_title("")
        axes.set_xlim(left=0)
    for axes in (loss, staleness, energy):
        # Beside the title: within the axes a curve would cross it.
        place = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.1}
        axes.legend(**place, ncols=2, frameon=False, fontsize=9)
    for axes in (staleness, energy):
        axes.set_xlabel("seconds of training")
    figure.savefig(path, dpi=120)


def held_out_losses(metrics: Metrics) -> list[tuple[float, float]]:
    """Seconds of training and losses of the evaluations that the reports tell of, in the order of time."""
    found: dict[tuple[Any, ...], tuple[float, float]] = {}
    for line, seconds in zip(metrics, elapsed(metrics), strict=True):
        if (seen := line.get("last_evaluation")) is not None:
            earlier = seconds - float(line.get("run_seconds", 0))
            key = (earlier, status_view.clock(seen), seen.get("evaluator"))
            found[key] = (earlier + float(seen.get("run_seconds", 0)), float(seen["loss"]))
    return sorted(found.values())


_BLUE, _ORANGE, _GREEN, _RED, _PURPLE, _TEAL = "#4477aa", "#ee7733", "#228833", "#cc3311", "#aa3377", "#009988"
