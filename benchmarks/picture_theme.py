"""Colours for pictures on light and dark pages, and saving them."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of one version. The background is GitHub's, and opaque."""

    background: str
    text: str
    faint: str
    gemps: str
    peer: str


LIGHT = Theme("#ffffff", "#1f2328", "#59636e", "#0a63c2", "#c2410c")
DARK = Theme("#0d1117", "#f0f6fc", "#9198a1", "#58a6ff", "#ff8a4c")


def write(figure: Figure, file: Path, background: str) -> None:
    """Save a figure as a PNG with few colours."""
    picture = BytesIO()
    figure.savefig(picture, dpi=160, facecolor=background)
    # A palette makes the file a third as large, and nothing here has more colours than it holds.
    Image.open(picture).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(file, optimize=True)


def clean(axes: Axes, theme: Theme) -> None:
    """Remove the frame's top and right side, and colour the rest."""
    axes.set_facecolor(theme.background)
    axes.grid(color=theme.faint, alpha=0.22, linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(theme.faint)
    axes.tick_params(which="both", colors=theme.faint, labelsize=9)
