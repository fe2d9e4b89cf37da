"""Style of the pictures. Only this file needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

    from gem_reproduction.figures.interface import Figure, Group
    from gem_reproduction.runs import Scope

SHADES = ("#9ecae1", "#6baed6", "#3182bd", "#08519c", "#041f4a")
RULES: Mapping[str, str] = {"gem": "#0a63c2", "downpour": "#c2410c", "adaptive-staleness": "#228833"}
SGD = "#222222"
NAMES: Mapping[str, str] = {"gem": "GEM", "downpour": "DOWNPOUR", "adaptive-staleness": "adaptive staleness"}

_DPI = 100
_COLOURS = 128
# Shorter axes have ticks at 2 and 5.
_FEW_DECADES = 2.2


def picture(figure: Figure, scope: Scope, found: Mapping[str, Group], path: Path) -> None:
    """Draw a PNG. Raises ImportError without matplotlib, OSError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas
    from PIL import Image

    canvas = Canvas(figsize=figure.size, layout="constrained")
    FigureCanvasAgg(canvas)
    canvas.suptitle(f"{figure.title}\n", fontsize=11, fontweight="bold", x=0.01, ha="left")
    canvas.text(0.01, 0.915, figure.subtitle(scope), fontsize=8, color="#59636e", va="bottom")
    figure.draw(found, canvas)
    drawn = BytesIO()
    canvas.savefig(drawn, dpi=_DPI)
    # Smaller; without metadata, equal results give equal files.
    palette = Image.open(drawn).convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    path.parent.mkdir(parents=True, exist_ok=True)
    palette.save(path, optimize=True)


def axes_of(
    axes: Axes,
    x: str,
    y: str,
    *,
    x_scale: Literal["log", "linear"] = "linear",
    y_scale: Literal["log", "linear"] = "linear",
) -> None:
    """Call after drawing curves."""
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.set_xscale(x_scale)
    axes.set_yscale(y_scale)
    axes.tick_params(labelsize=8)
    for axis, scale in ((axes.xaxis, x_scale), (axes.yaxis, y_scale)):
        if scale == "log":
            _plain_ticks(axis)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def over_seeds(
    axes: Axes, x: Sequence[Sequence[float]], y: Sequence[Sequence[float]], label: str, colour: str, style: str = "-"
) -> None:
    """Plot mean and min-max shade, cut to the shortest seed."""
    length = min((len(one) for one in y), default=0)
    if not length:
        return
    values = _table(y, length)
    places = _table(x, length).mean(axis=0)
    with np.errstate(invalid="ignore"):
        mean, least, most = values.mean(axis=0), values.min(axis=0), values.max(axis=0)
    axes.fill_between(places, least, most, color=colour, alpha=0.18, linewidth=0)
    axes.plot(places, mean, color=colour, label=label, linestyle=style, linewidth=1.4)


def bars_over_seeds(axes: Axes, x: Sequence[float], y: Sequence[Sequence[float]], label: str, colour: str) -> None:
    """Plot finite values' geometric means with min-max bars."""
    rows = [[value for value in values if np.isfinite(value)] for values in y]
    kept = [(place, values) for place, values in zip(x, rows, strict=True) if values]
    if not kept:
        return
    places = [place for place, _ in kept]
    means = np.array([np.exp(np.mean(np.log(values))) for _, values in kept])
    least, most = (np.array([choose(values) for _, values in kept]) for choose in (min, max))
    spread = np.clip(np.stack([means - least, most - means]), 0, None)
    axes.errorbar(places, means, spread, color=colour, label=label, marker="o", markersize=4, capsize=3, linewidth=1.4)


def legend(axes: Axes, **options: Any) -> None:
    """Add a legend."""
    axes.legend(frameon=False, fontsize=8, **options)


def _plain_ticks(axis: Axis) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    least, most = axis.get_view_interval()
    subs = (1.0, 2.0, 5.0) if most < least * 10**_FEW_DECADES else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _table(rows: Sequence[Sequence[float]], length: int) -> NDArray[np.float64]:
    return np.array([list(row[:length]) for row in rows], np.float64)
