"""Formats of the page."""

import html
import math
from typing import Any

from gem_core.visible_text import escape_invisible

_NOT_KNOWN = "-"


def safe(text: object) -> str:
    """Escape HTML, and characters that people would not see."""
    return html.escape(escape_invisible(str(text)))


def number(value: Any, digits: int = 3) -> str:
    """`0.0123`, `12.3`, `1,234` or `-`."""
    if value is None:
        return _NOT_KNOWN
    value = float(value)
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "infinite"
    if value == 0 or abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def duration(seconds: Any) -> str:
    """`0.4 ms`, `4 min 5 s` or `2 h 10 min`."""
    if seconds is None:
        return _NOT_KNOWN
    seconds = float(seconds)
    if 0 < seconds < 1:
        return f"{number(1000 * seconds)} ms"
    if seconds < 120:
        return f"{number(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def size(count: Any) -> str:
    """Bytes as `12.3 MB`."""
    if count is None:
        return _NOT_KNOWN
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{number(value)} {unit}"
        value /= 1000
    return f"{number(value)} TB"


def word(value: object) -> str:
    """`WORKER_STATE_FINISHED` -> `finished`."""
    text = str(value or "")
    for kind in ("STATE_", "CONDITION_", "ORDER_"):
        if kind in text:
            text = text.rpartition(kind)[2]
    return text.lower().replace("_", "-") or "unknown"
