"""Lines of shards."""

from rich.text import Text

from gem_cli.live.figures import compact
from gem_cli.live.text import fit
from gem_cli.status_view import Status, shard_cells, shards


def shard_lines(status: Status, most: int, cut: str) -> list[Text]:
    """At most `most` lines; none with one server."""
    found = shards(status)
    shown = found if len(found) <= most else found[: max(0, most - 1)]
    lines = [_line(one, cut) for one in shown]
    if most and len(shown) < len(found):
        lines.append(Text(f"and {len(found) - len(shown)} more shards", "dim"))
    return lines


def _line(shard: Status, cut: str) -> Text:
    cells = shard_cells(shard)
    line = Text(fit(f"shard {cells['shard']}", 9, cut), "dim")
    line.append(fit(cells["state"], 9, cut), "not dim green" if shard["ready"] else "not dim bold red")
    elements = f"{compact(shard['begin'])} to {compact(shard['end'])}"
    for text, width in ((f"clock {cells['clock']}", 14), (cells["memory"], 11), (elements, 17)):
        line.append(fit(text, width, cut), "not dim")
    return line.append(cells["address"], "not dim")
