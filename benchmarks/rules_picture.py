"""The README's picture: training loss and staleness of the runs of `compare_rules.py`, drawn from their metrics.jsonl.

Two files with the same content: one for light pages and, beside it, NAME-dark for dark ones.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from gem_cli import status_view
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter
from PIL import Image

NAMES = {"gem": "GEM", "downpour": "DOWNPOUR"}
ALONE = "one worker"  # in place of an order: as many samples as the other runs
ORDERS = {
    "round-robin": "commits applied in turn (round-robin)",
    "fifo": "commits applied as they arrive (FIFO)",
}


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of one version of the picture; the background is the page's on GitHub, and opaque for anywhere else."""

    background: str
    text: str
    faint: str
    rules: Mapping[str, str]
    alone: str


LIGHT = Theme("#ffffff", "#1f2328", "#59636e", {"gem": "#0a63c2", "downpour": "#c2410c"}, "#1a7f37")
DARK = Theme("#0d1117", "#f0f6fc", "#9198a1", {"gem": "#58a6ff", "downpour": "#ff8a4c"}, "#3fb950")


@dataclass(frozen=True, slots=True)
class Curve:
    """One run, a point a report of the server: all lists are of one length."""

    commits: list[int]
    loss: list[float]
    staleness: list[float]  # mean over the workers, in commits
    staleness_least: list[float]
    staleness_most: list[float]
    accuracy: float


def read(folder: Path) -> Curve:
    """Return what the run in `folder` has to show: the time in which all workers trained, at most 200 points."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    curve = Curve([], [], [], [], [], summary["accuracy"])
    for report in _reports(folder / "metrics.jsonl"):
        commits = status_view.clock(report)
        if curve.commits and commits - curve.commits[-1] < summary["commits"] / 200:
            continue  # reports come by the clock, and some runs are slower than others
        last = [float(worker["staleness_last"]) for worker in report["workers"]]
        curve.commits.append(commits)
        curve.loss.append(float(report["loss"]))
        curve.staleness.append(sum(last) / len(last))
        curve.staleness_least.append(min(last))
        curve.staleness_most.append(max(last))
    return curve


@dataclass(frozen=True, slots=True)
class Axis:
    """Units of the horizontal axes: a commit is one step of one worker, on one batch."""

    workers: int
    batch_size: int

    def thousand_samples(self, commits: int) -> float:
        """Samples that this many commits of all workers took."""
        return commits * self.batch_size / 1000

    def steps(self, thousand_samples: Any) -> Any:
        """Steps of each worker; elementwise."""
        return thousand_samples * 1000 / self.batch_size / self.workers

    def from_steps(self, steps: Any) -> Any:
        """Invert `steps`."""
        return steps * self.workers * self.batch_size / 1000


def draw(runs: Mapping[tuple[str, str], Path], path: Path, workers: int, eta: float, batch_size: int) -> None:
    """Write the picture of the runs, (rule, order or ALONE) -> folder, to `path` and its dark twin."""
    curves = {key: read(folder) for key, folder in runs.items()}
    axis = Axis(workers, batch_size)
    title = f"{workers} workers, eta {eta:g}, handwritten digits: the same staleness, two update rules"
    path.parent.mkdir(parents=True, exist_ok=True)
    for theme, file in ((LIGHT, path), (DARK, path.with_stem(f"{path.stem}-dark"))):
        write(_figure(curves, theme, title, axis), file, theme.background)


def _figure(curves: Mapping[tuple[str, str], Curve], theme: Theme, title: str, axis: Axis) -> Figure:
    figure = Figure(figsize=(10, 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=12.5, fontweight="bold", x=0.012, ha="left", color=theme.text)
    grid = figure.subplots(2, len(ORDERS), sharex=True, sharey="row", height_ratios=(3, 1))
    for (order, heading), loss, staleness in zip(ORDERS.items(), grid[0], grid[1], strict=True):
        _draw_loss(loss, {rule: curves[rule, order] for rule in NAMES}, curves["gem", ALONE], theme, axis)
        _draw_staleness(staleness, {rule: curves[rule, order] for rule in NAMES}, theme, axis)
        loss.set_title(heading, fontsize=10.5, color=theme.text, loc="left")
        staleness.set_xlabel(
            f"thousand samples, of all workers together ({axis.batch_size} a commit)", color=theme.faint, fontsize=9.5
        )
        steps = loss.secondary_xaxis("top", functions=(axis.steps, axis.from_steps))
        steps.set_xlabel(f"steps of each of the {axis.workers} workers", color=theme.faint, fontsize=9.5)
        steps.tick_params(colors=theme.faint, labelsize=9)
        steps.spines["top"].set_color(theme.faint)
    grid[0][0].set_ylabel("training loss", color=theme.faint, fontsize=9.5)
    grid[1][0].set_ylabel("staleness", color=theme.faint, fontsize=9.5)
    for axes in grid.flat:
        clean(axes, theme)
    return figure


def write(figure: Figure, file: Path, background: str) -> None:
    """Save a figure as a PNG with few colours."""
    picture = BytesIO()
    figure.savefig(picture, dpi=160, facecolor=background)
    # A palette makes the file a third as large, and nothing here has more colours than it holds.
    Image.open(picture).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(file, optimize=True)


def _draw_loss(axes: Axes, curves: Mapping[str, Curve], alone: Curve, theme: Theme, axis: Axis) -> None:
    axes.set_yscale("log")
    losses = [loss for curve in (*curves.values(), alone) for loss in curve.loss]
    axes.set_ylim(10 ** math.floor(math.log10(min(losses))), 10 ** math.ceil(math.log10(max(losses))))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.plot([*map(axis.thousand_samples, alone.commits)], alone.loss, color=theme.alone, linewidth=1.2)
    _label(axes, f"one GEM worker: test accuracy {alone.accuracy:.3f}", alone, theme.alone, above=False)
    for rule, curve in curves.items():
        axes.plot([*map(axis.thousand_samples, curve.commits)], curve.loss, color=theme.rules[rule], linewidth=2)
        text = f"{NAMES[rule]}: test accuracy {curve.accuracy:.3f}"
        _label(axes, text, curve, theme.rules[rule], above=curve.loss[-1] < curve.loss[0] / 2)


def _label(axes: Axes, text: str, curve: Curve, color: str, *, above: bool) -> None:
    """Write next to the right half of a curve."""
    settled = [loss for loss, at in zip(curve.loss, curve.commits, strict=True) if at > curve.commits[-1] / 2.2]
    axes.annotate(
        text,
        xy=(0.97, max(settled) if above else min(settled)),
        xycoords=("axes fraction", "data"),
        xytext=(0, 7 if above else -7),
        textcoords="offset points",
        ha="right",
        va="bottom" if above else "top",
        color=color,
        fontsize=11,
        fontweight="bold",
    )


def _draw_staleness(axes: Axes, curves: Mapping[str, Curve], theme: Theme, axis: Axis) -> None:
    for rule, curve in curves.items():
        color, samples = theme.rules[rule], [*map(axis.thousand_samples, curve.commits)]
        axes.fill_between(samples, curve.staleness_least, curve.staleness_most, color=color, alpha=0.18, linewidth=0)
        axes.plot(samples, curve.staleness, color=color, linewidth=1.5, linestyle="-" if rule == "gem" else "--")
    axes.set_ylim(0, 2 * axis.workers)
    axes.set_xlim(0, axis.thousand_samples(max(curve.commits[-1] for curve in curves.values())))


def clean(axes: Axes, theme: Theme) -> None:
    """Take out of a panel what does not help to read it, and colour the rest."""
    axes.set_facecolor(theme.background)
    axes.grid(color=theme.faint, alpha=0.22, linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(theme.faint)
    axes.tick_params(which="both", colors=theme.faint, labelsize=9)


def _reports(metrics: Path) -> Iterator[dict[str, Any]]:
    """Yield the reports from where all workers have committed to where the first one has done its part."""
    for line in metrics.read_text(encoding="utf-8").splitlines():
        report = json.loads(line)
        workers = report.get("workers", [])
        if workers and all(status_view.state(one, "state") == "TRAINING" and one.get("commits") for one in workers):
            yield report
