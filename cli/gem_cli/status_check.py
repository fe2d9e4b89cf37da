"""Describes a status in one line, as plugins of Nagios and Icinga do.

https://www.monitoring-plugins.org/doc/guidelines.html: state, text, and after a bar the figures for graphs.
"""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

from gem_cli.status_view import (
    Status,
    clock,
    live_workers,
    number,
    printable,
    problem_line,
    problems,
    severity,
    state,
    workers_in_words,
)

CODES: Mapping[str, int] = MappingProxyType({"OK": 0, "WARNING": 1, "CRITICAL": 2, "UNKNOWN": 3})
# Some programs cut a line at 1 024 characters.
_MOST_CHARACTERS = 900


def check(status: Status) -> tuple[str, str]:
    """Return the state, one of CODES, and the line."""
    found = problems(status)
    counts = Counter(severity(one) for one in found)
    worst = "CRITICAL" if counts["CRITICAL"] else "WARNING" if found else "OK"
    rate = float(status.get("commits_per_second", 0))
    live = live_workers(status)
    run = f"{state(status).lower()}, {workers_in_words(live)}, version {clock(status)}, {number(rate)} updates/s"
    text = "; ".join(map(problem_line, found)) or run
    figures = f"problems={len(found)} workers={live} commits={status.get('commits', 0)}c rate={rate:.6g}"
    return worst, f"{line(worst, text)} | {figures}"


def line(found: str, text: str) -> str:
    """Return the line without figures: bounded, and without a bar, with which they begin."""
    return f"GEMPS {found} - {printable(' '.join(text.split()).replace('|', '/'), _MOST_CHARACTERS)}"
