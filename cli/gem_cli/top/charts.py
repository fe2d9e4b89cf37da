"""Curves as rows of characters."""

from collections.abc import Sequence

from gem_cli.top.glyphs import Glyphs


def bars(values: Sequence[float | None], rows: int, glyphs: Glyphs, *, from_zero: bool = True) -> list[str]:
    """Return `rows` lines, the upper one first, with a bar for each value; a gap where there is none.

    The highest bar is the largest value. With `from_zero` no bar would be 0, else the smallest value is the lowest bar.
    """
    known = [value for value in values if value is not None]
    high = max(known, default=0.0)
    low = min(known, default=0.0) if not from_zero else 0.0
    steps = len(glyphs.levels)
    heights = [_height(value, low, high, rows * steps) for value in values]
    return ["".join(_part(height - row * steps, glyphs.levels) for height in heights) for row in reversed(range(rows))]


def progress_bar(fraction: float, width: int, glyphs: Glyphs) -> str:
    """Return a bar of which this part, 0 to 1, is done."""
    done = int(max(0.0, min(1.0, fraction)) * width)
    return glyphs.done * done + glyphs.left * (width - done)


def _height(value: float | None, low: float, high: float, most: int) -> int:
    """Return how many levels a bar is high: 0 is a gap, so what is known has 1 at least."""
    if value is None:
        return 0
    if high <= low:
        return 1
    return 1 + round((max(low, value) - low) / (high - low) * (most - 1))


def _part(height: int, levels: str) -> str:
    """Return what of a bar is to be seen in one row, above whose foot it is so many levels high."""
    return " " if height <= 0 else levels[min(height, len(levels)) - 1]
