"""Charts of characters."""

from collections.abc import Sequence

from gem_cli.live.glyphs import Glyphs


def bars(values: Sequence[float | None], rows: int, glyphs: Glyphs, *, from_zero: bool = True) -> list[str]:
    """`rows` lines, top first, gaps for None.

    Without `from_zero` the smallest value is the baseline.
    """
    known = [value for value in values if value is not None]
    high = max(known, default=0.0)
    low = min(known, default=0.0) if not from_zero else 0.0
    steps = len(glyphs.levels)
    heights = [_height(value, low, high, rows * steps) for value in values]
    return ["".join(_part(height - row * steps, glyphs.levels) for height in heights) for row in reversed(range(rows))]


def progress_bar(fraction: float, width: int, glyphs: Glyphs) -> str:
    """Bar; `fraction`: 0 to 1."""
    done = int(max(0.0, min(1.0, fraction)) * width)
    return glyphs.done * done + glyphs.left * (width - done)


def _height(value: float | None, low: float, high: float, most: int) -> int:
    """0 is a gap."""
    if value is None:
        return 0
    if high <= low:
        return 1
    return 1 + round((max(low, value) - low) / (high - low) * (most - 1))


def _part(height: int, levels: str) -> str:
    return " " if height <= 0 else levels[min(height, len(levels)) - 1]
