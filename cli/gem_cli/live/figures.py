"""Short number formats."""

import math
from typing import Any

_LARGE = ("", "k", "M", "G", "T", "P")


def compact(value: Any) -> str:
    """Format in seven characters: `0.00123`, `12.3`, `1.23k`, `1e-5`, `-`."""
    if value is None:
        return "-"
    value = float(value)
    if not math.isfinite(value):
        return str(value)
    size, suffix = abs(value), 0
    if 0 < size < 0.001:
        return f"{value:.0e}".replace("e-0", "e-")
    while size >= 999.5 and suffix < len(_LARGE) - 1:
        size, suffix = size / 1000, suffix + 1
    return f"{math.copysign(size, value):.3g}{_LARGE[suffix]}"


def two_decimals(value: Any) -> str:
    """`0.75` or `-`."""
    return "-" if value is None else f"{float(value):.2f}" if float(value) < 100 else compact(value)


def count(number: Any, width: int) -> str:
    """`12,345` or `12.3k`."""
    whole = f"{int(number):,}"
    return whole if len(whole) <= width else compact(number)


def duration(seconds: Any) -> str:
    """`45 s`, `12:05`, `1:02:03` or `3 d 04:05`."""
    whole = int(seconds)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86_400
    if days:
        return f"{days} d {hours % 24:02}:{minutes % 60:02}"
    if hours:
        return f"{hours}:{minutes % 60:02}:{whole % 60:02}"
    return f"{minutes}:{whole % 60:02}" if minutes else f"{whole} s"


def ago(seconds: Any) -> str:
    """`now`, `45 s`, `12 m`, `3 h` or `4 d`."""
    whole = float(seconds)
    if whole < 1:
        return "now"
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if whole >= size:
            return f"{whole // size:.0f} {unit}"
    return f"{int(whole)} s"
