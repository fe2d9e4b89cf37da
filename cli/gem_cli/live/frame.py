"""Draws the screen of `gemps status --watch` as lines of text."""

from collections.abc import Sequence
from textwrap import wrap

from rich.text import Text

from gem_cli import status_view
from gem_cli.live import worker_table
from gem_cli.live.charts import bars, progress_bar
from gem_cli.live.curves import RATE
from gem_cli.live.explained import EXPLAINED
from gem_cli.live.figures import compact, count, duration, two_decimals
from gem_cli.live.glyphs import Glyphs
from gem_cli.live.progress import progress
from gem_cli.live.shard_lines import shard_lines
from gem_cli.live.text import fit
from gem_cli.live.view import View
from gem_cli.status_view import LIVE, TROUBLE, Status, percent

# (field, heading, colour, from zero)
_CHARTS = (
    ("loss", "loss", "cyan", False),
    (RATE, "commits/s", "green", True),
    ("staleness_mean", "staleness", "yellow", True),
    ("mean_pi", "mean pi", "magenta", True),
    ("blocked_fraction", "blocked", "red", True),
    ("clamped_fraction", "clamped", "blue", True),
)
_FIGURES = ("loss", "staleness", "mean_pi", "blocked", "clamped")
_BESIDE_CHARTS = 5  # title, budget, table summary, headings, keys
_TALL = 48  # for three-line charts
_SMALL = 16  # no lines of shards
_WIDE = 120
_LABEL, _VALUE, _GAP = 10, 7, 2
_FEWEST_WORKERS = 3
_SHOWN = frozenset({"budget", "eta", "queue", "memory", "best evaluation"})
_LATE_INTERVALS, _LATE_SECONDS = 2.0, 3.0
_KEYS = "q quit   s sort   ? help   arrows, j k, page keys: scroll"
_KEYS_OF_HELP = "any other key: back   arrows, j k, page keys: scroll"


def frame(view: View, width: int, height: int, now: float, glyphs: Glyphs) -> list[Text]:
    """Return `height` lines of `width` columns. `now` is a time by the clock of `view.seen_at`."""
    lines = _help(view, width, height, glyphs) if view.helps else _dashboard(view, width, height, now, glyphs)
    for line in lines:
        line.truncate(width, overflow="crop", pad=True)
    return lines[:height]


def _dashboard(view: View, width: int, height: int, now: float, glyphs: Glyphs) -> list[Text]:
    rows = 3 if height >= _TALL else 1
    shards = shard_lines(view.status, max(0, height - _SMALL) // 2, glyphs.cut)
    others = _BESIDE_CHARTS + len(shards)
    shown = len(_CHARTS) if rows > 1 else max(0, min(len(_CHARTS), height - others - _FEWEST_WORKERS))
    charts = _charts(view, shown, rows, width, glyphs)
    return [
        _title(view, width, now, glyphs),
        _budget(view.status, width, glyphs),
        *charts,
        *shards,
        *_workers(view, width, height - others - len(charts), glyphs),
        _footer(view, width, glyphs),
    ]


def _title(view: View, width: int, now: float, glyphs: Glyphs) -> Text:
    elapsed = fit(duration(view.status.get("run_seconds", 0.0)), 10, glyphs.cut, right=True)
    word, style = _state(view, now)
    line = Text("gemps ", "bold")
    line.append(fit(view.address, max(10, width - 56), glyphs.cut) + " ")
    line.append(fit(word, 19, glyphs.cut), f"bold {style}")
    line.append(fit(f"version {count(status_view.clock(view.status), 10)}", 20, glyphs.cut))
    line.append(elapsed)
    return line


def _state(view: View, now: float) -> tuple[str, str]:
    age = now - view.seen_at
    if view.lost:
        return f"NO ANSWER {duration(age)}", "reverse red"
    if not view.is_over and age > _LATE_SECONDS + _LATE_INTERVALS * view.interval:
        return f"NO REPORT {duration(age)}", "reverse yellow"
    found = status_view.state(view.status)
    if found == "WAITING":
        missing = status_view.missing_workers(view.status)
        return (f"WAITING for {missing} more" if missing > 0 else "WAITING"), "yellow"
    return found, {"TRAINING": "green", "FINISHED": "cyan"}.get(found, "")


def _budget(status: Status, width: int, glyphs: Glyphs) -> Text:
    found = progress(status)
    line = Text(fit("budget", _LABEL, glyphs.cut), "dim")
    if found.fraction is None:
        return line.append(found.text, "not dim")
    left = "" if found.seconds_left is None else f"{duration(found.seconds_left)} left"
    if status_view.state(status) == "FINISHED":
        left = "finished"
    bar = max(4, width - _LABEL - 55)
    line.append(progress_bar(found.fraction, bar, glyphs), "not dim green")
    line.append(f"{100 * found.fraction:5.0f} %  ", "not dim bold")
    line.append(fit(left, 16, glyphs.cut) + fit(found.text, 30, glyphs.cut), "not dim")
    return line


def _charts(view: View, shown: int, rows: int, width: int, glyphs: Glyphs) -> list[Text]:
    status = view.status
    # Zeros before the first commit.
    values = status_view.figures(status) if status.get("commits_of_process") else dict.fromkeys(_FIGURES)
    now = {
        "loss": compact(values["loss"]),
        RATE: compact(status.get("commits_per_second")),
        "staleness_mean": two_decimals(values["staleness"]),
        "mean_pi": two_decimals(values["mean_pi"]),
        "blocked_fraction": percent(values["blocked"]),
        "clamped_fraction": percent(values["clamped"]),
    }
    beside = 48 if width >= _WIDE else 31
    columns = max(8, width - _LABEL - _VALUE - 2 * _GAP - beside)
    facts = _facts(status, all_of_them=rows > 1)
    lines: list[Text] = []
    for field, name, colour, from_zero in _CHARTS[:shown]:
        known = view.curves.columns(field, columns)
        picture = bars(known, rows, glyphs, from_zero=from_zero)
        below = [" " * columns] if rows > 1 else []
        for row, bar in enumerate([*picture, *below]):
            label, value = (name, now[field]) if not row else _extreme(row, known, field)
            line = Text(fit(label, _LABEL, glyphs.cut), "dim")
            line.append(fit(value, _VALUE, glyphs.cut, right=True), "not dim bold" if not row else "not dim")
            line.append(" " * _GAP + bar + " " * _GAP, f"not dim {colour}")
            name_of_fact, fact = facts[len(lines)] if len(lines) < len(facts) else ("", "")
            line.append(fit(name_of_fact, 11, glyphs.cut), "dim")
            line.append(fit(fact, beside - 11, glyphs.cut), "not dim")
            lines.append(line)
    return lines


def _extreme(row: int, values: Sequence[float | None], field: str) -> tuple[str, str]:
    if row > 2:
        return "", ""
    known = [value for value in values if value is not None]
    name, found = ("  highest", max(known, default=None)) if row == 1 else ("  lowest", min(known, default=None))
    return name, percent(found) if field.endswith("fraction") else compact(found)


def _facts(status: Status, *, all_of_them: bool) -> list[tuple[str, str]]:
    last, best = status.get("last_evaluation"), status.get("best_evaluation")
    queue, memory = status.get("queue", {}), status.get("memory", {})
    rule = status_view.rule_name(status.get("settings", {})) or "-"
    found = [
        ("evaluated", f"{last['accuracy']:.4f}, loss {compact(last['loss'])}{status_view.bits(last)}" if last else "-"),
        ("best", f"{best['accuracy']:.4f} at {count(status_view.clock(best), 11)}" if best else "-"),
        ("fairness", f"{status.get('jain_index', 0.0):.3f} of 1 (Jain)"),
        ("queue", f"{queue.get('length', 0)} ready, {queue.get('waiting', 0)} waiting"),
        ("memory", f"{_mib(memory.get('reserved_bytes', 0))} of {_mib(memory.get('limit_bytes', 0))} MiB"),
        ("eta", f"{_eta(status)}, rule {rule}"),
    ]
    if all_of_them:
        found += [(name, value) for name, value in status_view.facts(status) if name not in _SHOWN]
    return found


def _eta(status: Status) -> str:
    return status_view.eta_in_words(status) if status_view.is_eta_open(status) else compact(status.get("next_eta"))


def _mib(number: float) -> str:
    return count(number / 2**20, 8)


def _workers(view: View, width: int, lines: int, glyphs: Glyphs) -> list[Text]:
    columns = worker_table.columns_for(width)
    workers = worker_table.ordered(view.status, view.order)
    shown = view.scroll(len(workers), lines)
    found = [worker_table.row(workers[index], columns, glyphs.cut) for index in shown]
    if not workers:
        found = [Text("no worker has joined yet: gemps work starts one", "dim")]
    while len(found) < lines:
        found.append(Text())
    above = [_about(view, workers, shown, width, glyphs), worker_table.heading(columns, glyphs.cut)]
    return [*above, *found]


def _about(view: View, workers: Sequence[Status], shown: range, width: int, glyphs: Glyphs) -> Text:
    conditions = [status_view.condition(worker) for worker in workers]
    marked = [f"{conditions.count(name)} {name}" for name in TROUBLE if name in conditions]
    live = sum(status_view.state(worker, "state") in LIVE for worker in workers)
    which = f"workers {shown.start + 1}{glyphs.to}{shown.stop} of {len(workers)}" if workers else "no workers"
    parts = [which, f"{live} live", *([", ".join(marked)] if marked else []), f"by {view.order}"]
    line = Text(f"{glyphs.line * 2} ", "dim")
    line.append(glyphs.between.join(parts), "not dim bold" if marked else "not dim")
    line.append(" " + glyphs.line * max(0, width - len(line) - 1), "dim")
    return line


def _footer(view: View, width: int, glyphs: Glyphs) -> Text:
    if view.lost:
        why = view.lost.removeprefix(f"no answer from a gemps server at {view.address} ")
        text = f"q quit   asking it again until it answers: {why}"
    elif view.is_over:
        text = f"the run is over   {_KEYS}"
    else:
        text = _KEYS
    return Text(fit(text, width, glyphs.cut), "reverse")


def _help(view: View, width: int, height: int, glyphs: Glyphs) -> list[Text]:
    names = max(len(name) for name, _ in EXPLAINED) + 2
    lines: list[Text] = []
    for name, sentence in EXPLAINED:
        for number, part in enumerate(wrap(sentence, max(20, width - names))):
            line = Text(fit("" if number else name, names, glyphs.cut), "bold")
            lines.append(line.append(part, "not bold"))
    shown = view.scroll(len(lines), height - 1)
    page = [lines[index] for index in shown]
    page += [Text() for _ in range(height - 1 - len(page))]
    return [*page, Text(fit(_KEYS_OF_HELP, width, glyphs.cut), "reverse")]
