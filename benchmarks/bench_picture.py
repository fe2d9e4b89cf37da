"""The README's picture of the benchmark, from the JSON of `make bench`: bars against peers, and curves over workers.

    python -m benchmarks.bench_picture runs/bench.json docs/images/benchmark.png

Two files with the same content: one for light pages and, beside it, NAME-dark for dark ones.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from benchmarks.harness.environments import REPOSITORY
from benchmarks.harness.plan import CURVE_PARAMETERS, CURVES
from benchmarks.harness.results import Results, Spread, rate
from benchmarks.peers.interface import Case
from benchmarks.picture_theme import DARK, LIGHT, Theme, clean, write

MARKERS = ("o", "s", "^", "v", "D", "P")
LINES = ("-", "--", "-", "--", "-.", ":")


@dataclass(frozen=True, slots=True)
class Bar:
    """One contender's commits a second."""

    title: str
    kind: str
    rates: Spread


def bars(results: Results, case: Case) -> list[Bar]:
    """Of a case, the slowest first: bars are drawn from below."""
    found = []
    for name in results.names(case):
        rates = results.figure(name, case, rate)
        if rates is not None:
            about = results.contenders[name]
            found.append(Bar(about.title, about.kind, rates))
    return sorted(found, key=lambda bar: bar.rates.median)


def curves(results: Results, parameters: int) -> dict[str, list[tuple[int, Spread]]]:
    """Of each contender that has at least two points: (workers, commits a second)."""
    found: dict[str, list[tuple[int, Spread]]] = {}
    for name in CURVES:
        points = [
            (case.workers, rates)
            for case in results.cases()
            if case.parameters == parameters and (rates := results.figure(name, case, rate)) is not None
        ]
        if len(points) > 1:
            found[name] = points
    return found


def draw(
    results: Results, sizes: Sequence[int], workers: int, path: Path, curves_of: Results | None = None
) -> list[Path]:
    """Write the picture, a row for each size, to `path` and its dark twin; returns both.

    `curves_of`: another run, whose curves are drawn beside the bars of the first.

    Raises ValueError when nothing was measured in a case.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for theme, file in ((LIGHT, path), (DARK, path.with_stem(f"{path.stem}-dark"))):
        write(_figure(results, sizes, workers, theme, curves_of or results), file, theme.background)
        written.append(file)
    return written


def _figure(results: Results, sizes: Sequence[int], workers: int, theme: Theme, curves_of: Results) -> Figure:
    rows = [(Case(size, workers), bars(results, Case(size, workers)), curves(curves_of, size)) for size in sizes]
    for case, found, _ in rows:
        if not found:
            raise ValueError(f"the file has no figures for {case}: choose others with --parameters and --workers")
    has_curves = any(found for _, _, found in rows)
    figure = Figure(figsize=(11, 0.6 + sum(0.9 + 0.24 * len(found) for _, found, _ in rows)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(
        f"Commits a second on {results.machine['cores']} cores: the whole model both ways, every commit waited for",
        fontsize=12.5,
        fontweight="bold",
        x=0.012,
        ha="left",
        color=theme.text,
    )
    grid = figure.subplots(
        len(rows),
        2 if has_curves else 1,
        squeeze=False,
        width_ratios=(1.25, 1) if has_curves else (1,),
        height_ratios=[1 + len(found) for _, found, _ in rows],
    )
    for axes, (case, found, lines) in zip(grid, rows, strict=True):
        _draw_bars(axes[0], found, theme)
        axes[0].set_title(
            f"{_size(case.parameters)} parameters, {workers} workers", fontsize=10.5, color=theme.text, loc="left"
        )
        if not has_curves:
            continue
        if lines:
            _draw_curves(axes[1], lines, curves_of, theme)
            axes[1].set_title(
                f"{_size(case.parameters)} parameters, more workers", fontsize=10.5, color=theme.text, loc="left"
            )
        else:
            axes[1].axis("off")
    return figure


def _draw_bars(axes: Axes, found: Sequence[Bar], theme: Theme) -> None:
    # Limits can be a hundred times as fast as everybody: their bars are cut where they would hide the others.
    compared = [bar for bar in found if bar.kind != "limit"] or found
    end = 1.3 * max(bar.rates.highest for bar in compared)
    for place, bar in enumerate(found):
        color = _color(bar.kind, theme)
        cut = bar.rates.median > end
        axes.barh(place, min(bar.rates.median, end), height=0.66, color=color, alpha=1 if bar.kind != "limit" else 0.35)
        if not cut:
            axes.plot((bar.rates.lowest, min(bar.rates.highest, end)), (place, place), color=theme.text, linewidth=1)
        number = f"{bar.rates.median:,.0f}" if bar.rates.median >= 10 else f"{bar.rates.median:,.1f}"
        axes.annotate(
            f"{number} \N{RIGHTWARDS ARROW}" if cut else number,
            xy=(end if cut else min(max(bar.rates.median, bar.rates.highest), end), place),
            xytext=(-5 if cut else 5, 0),
            textcoords="offset points",
            ha="right" if cut else "left",
            va="center",
            color=theme.text if bar.kind == "gemps" or cut else theme.faint,
            fontsize=9,
            fontweight="bold" if bar.kind == "gemps" else "normal",
            annotation_clip=False,
        )
    clean(axes, theme)
    axes.grid(visible=False, axis="y")
    axes.set_yticks(range(len(found)), [bar.title + (" (limit)" if bar.kind == "limit" else "") for bar in found])
    for label, bar in zip(axes.get_yticklabels(), found, strict=True):
        label.set_color(_color(bar.kind, theme) if bar.kind == "gemps" else theme.faint)
        label.set_fontsize(9)
    axes.set_xlim(0, end)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if end >= 10 else f"{value:g}"))
    axes.set_xlabel("commits a second, of all workers together", color=theme.faint, fontsize=9.5)


def _draw_curves(axes: Axes, lines: dict[str, list[tuple[int, Spread]]], results: Results, theme: Theme) -> None:
    colors = {"gemps": theme.gemps, "peer": theme.peer}
    for name, points in lines.items():
        about = results.contenders[name]
        place = CURVES.index(name)
        workers = [count for count, _ in points]
        axes.fill_between(
            workers,
            [rates.lowest for _, rates in points],
            [rates.highest for _, rates in points],
            color=colors[about.kind],
            alpha=0.12,
            linewidth=0,
        )
        axes.plot(
            workers,
            [rates.median for _, rates in points],
            color=colors[about.kind],
            linestyle=LINES[place],
            marker=MARKERS[place],
            markersize=5,
            linewidth=2 if about.kind == "gemps" else 1.3,
            label=about.title,
        )
    clean(axes, theme)
    ticks = sorted({count for points in lines.values() for count, _ in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("workers", color=theme.faint, fontsize=9.5)
    axes.set_ylabel("commits a second", color=theme.faint, fontsize=9.5)
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.13), "ncols": 2}
    axes.legend(fontsize=8, frameon=False, labelcolor=theme.text, **below)


def _color(kind: str, theme: Theme) -> str:
    return {"gemps": theme.gemps, "peer": theme.peer}.get(kind, theme.faint)


def _size(parameters: int) -> str:
    return f"{parameters:,}" if parameters < 1_000_000 else f"{parameters / 1e6:.1f} million"


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("json", type=Path, nargs="?", default=REPOSITORY / "runs" / "bench.json")
    parser.add_argument("picture", type=Path, nargs="?", default=REPOSITORY / "docs" / "images" / "benchmark.png")
    parser.add_argument(
        "--parameters", type=int, nargs="+", default=[CURVE_PARAMETERS], help="a row of the picture for each"
    )
    parser.add_argument("--workers", type=int, default=4, help="of the bars")
    parser.add_argument("--curves", type=Path, metavar="JSON", help="of another run, with more numbers of workers")
    arguments = parser.parse_args()
    try:
        results = Results.load(arguments.json)
        curves_of = Results.load(arguments.curves) if arguments.curves else None
        for file in draw(results, arguments.parameters, arguments.workers, arguments.picture, curves_of):
            print(file)
    except FileNotFoundError as error:
        sys.exit(f"{error.filename} is not there: `make bench` writes it")
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
