"""Worker table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from gem_cli.live.figures import ago, compact, count, two_decimals
from gem_cli.live.text import fit
from gem_cli.status_view import LIVE, TROUBLE, Status, condition, exchange, host, percent, printable, recent, state

_MIB = 1 << 20
_LONGEST_NAME = 40


@dataclass(frozen=True, slots=True)
class Column:
    """`rank` 0: always shown; others as they fit."""

    heading: str
    width: int
    cell: Callable[[Status], str]
    rank: int = 0
    left: bool = False


def _milliseconds(field: str) -> Callable[[Status], str]:
    return lambda worker: compact(1000 * float(worker[field])) if worker.get(field) else "-"


def _mebibytes(field: str) -> Callable[[Status], str]:
    return lambda worker: two_decimals(worker.get(field, 0) / _MIB)


def _condition(worker: Status) -> str:
    found = condition(worker)
    if found in TROUBLE:
        return found
    return "well" if state(worker, "state") in LIVE else "-"


COLUMNS = (
    Column("worker", 15, lambda worker: printable(worker.get("name", ""), _LONGEST_NAME), left=True),
    Column("rank", 4, lambda worker: str(worker.get("rank", "")), rank=2),
    Column("state", 10, lambda worker: state(worker, "state").lower(), left=True),
    Column("condition", 9, _condition, left=True),
    Column("device", 10, lambda worker: printable(worker.get("device", "")), rank=5, left=True),
    Column("host", 20, host, rank=11, left=True),
    Column("exchange", 13, exchange, rank=9, left=True),
    Column("commits", 9, lambda worker: count(worker.get("commits", 0), 9), rank=1),
    Column("commits/s", 9, lambda worker: compact(worker.get("commits_per_second"))),
    Column("loss", 7, lambda worker: compact(worker.get("loss"))),
    Column("stale", 5, lambda worker: two_decimals(worker.get("staleness_mean") if worker.get("commits") else None)),
    Column("pi", 5, lambda worker: two_decimals(recent(worker, "mean_pi"))),
    Column("blocked", 7, lambda worker: percent(recent(worker, "blocked_fraction"))),
    Column("clamped", 7, lambda worker: percent(recent(worker, "clamped_fraction")), rank=3),
    Column("p50 ms", 7, _milliseconds("wait_p50_seconds"), rank=6),
    Column("p99 ms", 7, _milliseconds("wait_p99_seconds"), rank=4),
    Column("samples", 7, lambda worker: compact(worker.get("samples", 0)), rank=7),
    Column("local steps", 11, lambda worker: compact(worker.get("local_steps", 0)), rank=7),
    Column("MiB in", 7, _mebibytes("bytes_received"), rank=8),
    Column("MiB out", 7, _mebibytes("bytes_sent"), rank=8),
    Column("refused", 7, lambda worker: count(worker.get("refused", 0), 7), rank=10),
    Column("seen", 5, lambda worker: ago(worker.get("seconds_since_last_call", 0.0))),
)


def columns_for(width: int) -> list[tuple[Column, int]]:
    """Columns that fit, with widths."""
    shown = {column.heading for column in COLUMNS if not column.rank}
    room = width - sum(column.width + 1 for column in COLUMNS if not column.rank) + 1
    for column in sorted((one for one in COLUMNS if one.rank), key=lambda one: one.rank):
        if column.width + 1 <= room:
            shown.add(column.heading)
            room -= column.width + 1
    names = min(_LONGEST_NAME, COLUMNS[0].width + max(0, room))
    return [(column, names if column is COLUMNS[0] else column.width) for column in COLUMNS if column.heading in shown]


def heading(columns: Sequence[tuple[Column, int]], cut: str) -> Text:
    """Heading line."""
    cells = (fit(column.heading, width, cut, right=not column.left) for column, width in columns)
    return Text(" ".join(cells), "bold underline")


def row(worker: Status, columns: Sequence[tuple[Column, int]], cut: str) -> Text:
    """Worker's line."""
    line = Text(style="" if state(worker, "state") in LIVE or condition(worker) in TROUBLE else "dim")
    for place, (column, width) in enumerate(columns):
        style = TROUBLE.get(condition(worker), "") if column.heading in ("worker", "condition") else ""
        line.append((" " if place else "") + fit(column.cell(worker), width, cut, right=not column.left), style)
    return line


def _number(worker: Status, value: Any) -> float:
    return float(value) if value is not None and state(worker, "state") in LIVE else float("-inf")


def _trouble(worker: Status) -> int:
    found = condition(worker)
    if found in TROUBLE:
        return list(TROUBLE).index(found)
    return len(TROUBLE) + (state(worker, "state") not in LIVE)


# Sort keys; rank breaks ties.
ORDERS: dict[str, Callable[[Status], Any]] = {
    "trouble": _trouble,
    "rank": lambda worker: 0,
    "slowest": lambda worker: (state(worker, "state") not in LIVE, worker.get("commits_per_second", 0.0)),
    "loss": lambda worker: -_number(worker, worker.get("loss")),
    "staleness": lambda worker: -_number(worker, worker.get("staleness_mean")),
    "blocked": lambda worker: -_number(worker, recent(worker, "blocked_fraction")),
}


def ordered(status: Status, order: str) -> list[Status]:
    """Workers in `order`."""
    by = ORDERS[order]
    return sorted(status.get("workers", ()), key=lambda worker: (by(worker), worker.get("rank", 0)))
