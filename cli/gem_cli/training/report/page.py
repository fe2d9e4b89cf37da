"""Layout of the report page."""

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

from gem_cli import status_view
from gem_cli.status_view import percent
from gem_cli.training.report import charts
from gem_cli.training.report.charts import Curve
from gem_cli.training.report.contents import Contents
from gem_cli.training.report.words import duration, number, safe, size, word

MAX_TENSORS = 64  # sampled evenly
MAX_BARS = 64


def page(contents: Contents) -> str:
    """The page."""
    title = safe(contents.name)
    style = resources.files(__package__).joinpath("style.css").read_text(encoding="utf-8") + charts.shades()
    body = [
        f"<header><h1>{title}</h1><p>{_headline(contents)}</p></header>",
        *_footnotes(contents),
        "<main>",
        _figures(contents),
        _loss(contents),
        _loss_over_samples(contents),
        _accuracy(contents),
        _rate(contents),
        _pi(contents),
        _fractions(contents),
        _staleness(contents),
        _staleness_histogram(contents),
        _fairness(contents),
        _commits(contents),
        _tensors(contents),
        _workers(contents),
        _settings(contents),
        "</main>",
        f"<footer>{_colophon(contents)}</footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title} · gemps</title>\n<style>\n{style}\n</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _panel(identity: str, title: str, about: str, content: str, missing: str, *, full: bool = False) -> str:
    inside = content or f'<p class="missing">{safe(missing)}</p>'
    wide = ' class="full"' if full else ""
    return (
        f'<section id="{identity}"{wide} aria-labelledby="{identity}-title"><h2 id="{identity}-title">{title}</h2>'
        f'<p class="about">{about}</p>{inside}</section>'
    )


def _headline(contents: Contents) -> str:
    status = contents.status
    settings = status.get("settings", {})
    workers = len(status.get("workers", ()))
    seed = contents.summary.get("seed")
    state = "interrupted" if contents.summary.get("interrupted") else status_view.state(status).lower()
    return safe(
        f"{status_view.rule_name(settings) or 'gemps'} · {workers} worker{'s' if workers != 1 else ''} · {state} after "
        f"{duration(status.get('run_seconds'))}" + (f" · seed {seed}" if seed is not None else "")
    )


def _footnotes(contents: Contents) -> Iterable[str]:
    if not contents.summary:
        yield _footnote("There is no summary.json: the run was killed, or still runs. What follows was known last.")
    if contents.is_resumed:
        yield _footnote(
            f"The run was resumed: of {contents.status['commits']:,} commits the curves show the last "
            f"{contents.commits_of_process:,}, those of the last server process."
        )


def _footnote(text: str) -> str:
    return f'<p class="note">{safe(text)}</p>'


def _figures(contents: Contents) -> str:
    summary, status = contents.summary, contents.status
    found = status_view.run_means(status)
    best, bits = status.get("best_evaluation"), summary.get("bits_per_character")
    since = " since the restart" if contents.is_resumed else ""
    figures = [
        ("Test accuracy", percent(summary.get("accuracy"))),
        ("Test loss", number(summary.get("test_loss"))),
        *([("Bits a character", number(bits))] if bits is not None else []),
        ("Training loss", number(status_view.figures(status)["loss"])),
        ("Commits", f"{status.get('commits', 0):,}"),
        (f"Samples{since}", f"{contents.samples:,}" if contents.samples else number(None)),
        ("Commits a second, mean", number(summary.get("commits_per_second", status_view.mean_rate(status)))),
        ("Training time", duration(summary.get("training_seconds", status.get("run_seconds")))),
        ("Staleness, mean", number(found["staleness"])),
        ("Pi, mean", number(found["mean_pi"])),
        ("Blocked, mean", percent(found["blocked"])),
        ("Fairness (Jain)", number(status.get("jain_index"), 4)),
        ("Parameters", f"{status.get('parameter_count', 0):,}"),
        ("Version", f"{status_view.clock(status):,}"),
    ]
    if best:
        figures += [("Best accuracy", percent(best["accuracy"])), ("at version", f"{status_view.clock(best):,}")]
    listed = "".join(f"<div><dt>{name}</dt><dd>{safe(value)}</dd></div>" for name, value in figures)
    about = (
        "What came of it. Means are over all commits of the run; the training loss is of the newest commit of each "
        "worker."
    )
    return _panel("figures", "The run", about, f'<dl class="figures">{listed}</dl>', "", full=True)


def _loss(contents: Contents) -> str:
    curves = [
        Curve("training, on the workers' own batches", "blue", _over_time(contents, "loss")),
        Curve("evaluation, on held-out samples", "orange", _evaluated(contents, "loss"), dots=True),
    ]
    drawn = _curves(contents, "Loss over seconds of training", curves, from_zero=False)
    return _panel("loss", "Loss", "How wrong the model is, over seconds of training.", drawn, contents.missing)


def _loss_over_samples(contents: Contents) -> str:
    points: list[tuple[float, float | None]] = []
    commits = contents.status.get("commits", 0) - contents.status.get("commits_of_process", 0)
    for one in contents.intervals:
        commits += one["commits"]
        points.append((commits * contents.samples_per_commit, one.get("loss")))
    curve = Curve("training, on the workers' own batches", "blue", points if contents.samples_per_commit else ())
    drawn = charts.line_chart("Loss over samples", [curve], end=0, from_zero=False, is_time=False)
    about = "The same over the training samples of all workers together: more workers save time, not samples."
    missing = contents.missing or "The workers did not report their batch size: ps.step(loss, samples=len(batch))."
    return _panel("samples", "Loss over samples", about, drawn, missing)


def _accuracy(contents: Contents) -> str:
    drawn = _curves(
        contents,
        "Accuracy over seconds of training",
        [Curve("accuracy on held-out samples", "orange", _evaluated(contents, "accuracy"), dots=True)],
    )
    missing = (
        "No evaluator followed the run: --evaluation-interval SECONDS starts one, and so does gemps evaluate --follow."
    )
    return _panel("accuracy", "Accuracy", "How often the model was right on samples that it never saw.", drawn, missing)


def _rate(contents: Contents) -> str:
    rates: list[tuple[float, float | None]] = [
        (float(one["ends"]), one["commits"] / max(one["ends"] - one["begins"], 1e-3)) for one in contents.intervals
    ]
    drawn = _curves(contents, "Commits a second over time", [Curve("all workers together", "blue", rates)])
    return _panel("rate", "Commits a second", "How often the parameters were moved.", drawn, contents.missing)


def _pi(contents: Contents) -> str:
    drawn = _curves(contents, "Mean pi over time", [Curve("mean pi", "pink", _over_time(contents, "mean_pi"))])
    about = "By how much deltas were scaled, mean over elements and commits: below 1 energy was taken, above 1 given."
    return _panel("pi", "Pi", about, drawn, contents.missing)


def _fractions(contents: Contents) -> str:
    curves = [
        Curve("blocked (pi at its least)", "red", _over_time(contents, "blocked_fraction")),
        Curve("clamped (pi at its most)", "teal", _over_time(contents, "clamped_fraction")),
    ]
    drawn = _curves(contents, "Fractions of blocked and clamped elements over time", curves, most=1.0)
    about = "The fraction of elements that were not moved at all, and of those that got as much as is allowed."
    return _panel("blocked", "Blocked and clamped", about, drawn, contents.missing)


def _staleness(contents: Contents) -> str:
    curves = [
        Curve("most", "red", _over_time(contents, "staleness_max")),
        Curve("mean", "teal", _over_time(contents, "staleness_mean")),
    ]
    drawn = _curves(contents, "Staleness over time", curves)
    about = "How many commits of others lay between a worker's snapshot and its commit."
    return _panel("staleness", "Staleness", about, drawn, contents.missing)


def _staleness_histogram(contents: Contents) -> str:
    found = contents.status.get("staleness", {})
    bounds, counts = found.get("bounds", ()), found.get("counts", ())
    drawn = ""
    if len(counts) == len(bounds) + 1:
        drawn = charts.histogram("How often which staleness came", _buckets(bounds), counts)
    about = "How often which staleness came, over all commits since the server started."
    return _panel("histogram", "Staleness, how often", about, drawn, contents.missing or "Nothing was committed.")


def _buckets(bounds: Sequence[float]) -> list[str]:
    labels, before = [], -1
    for bound in map(int, bounds):
        labels.append(str(bound) if bound == before + 1 else f"{before + 1}-{bound}")
        before = bound
    return [*labels, f"> {before}"]


def _fairness(contents: Contents) -> str:
    curves = [Curve("Jain's index", "blue", _over_time(contents, "jain_index"))]
    drawn = _curves(contents, "Jain's index over time", curves, most=1.0)
    about = (
        "Jain's index of the workers' commits while all of them were there, which stays when one goes: 1 is perfectly "
        "fair, 1/n is one worker alone."
    )
    return _panel("fairness", "Fairness", about, drawn, contents.missing)


def _commits(contents: Contents) -> str:
    workers = _by_rank(contents)
    most = max((int(worker.get("commits", 0)) for worker in workers), default=0)
    rows = []
    for worker in workers[:MAX_BARS] if most else ():
        commits, name = int(worker.get("commits", 0)), safe(worker.get("name", ""))
        bar = f'<span class="track"><i style="width:{100 * commits / most:.1f}%"></i></span>'
        rows.append(f'<span class="name" title="{name}">{name}</span>{bar}<span>{commits:,}</span>')
    more = f'<p class="about">and {len(workers) - MAX_BARS} more</p>' if most and len(workers) > MAX_BARS else ""
    drawn = f'<div class="rows">{"".join(rows)}</div>{more}' if rows else ""
    return _panel("commits", "Commits by worker", "Applied commits of each worker.", drawn, "Nothing was committed.")


def _tensors(contents: Contents) -> str:
    found = (contents.history or {}).get("tensors", {})
    names, columns = found.get("names", ()), found.get("columns", ())
    about = (
        "Mean pi of each tensor over time, from sampled elements: where it is dark, the workers had spent their energy."
    )
    missing = contents.missing or (
        "Nothing was sampled: the run was too short, or its rule has no pi for each element."
    )
    return _panel("tensors", "Pi by tensor", about, _heat_map(names, columns) if columns else "", missing, full=True)


def _heat_map(names: Sequence[str], columns: Sequence[Mapping[str, Any]]) -> str:
    values = sorted(value for column in columns for value in column["mean_pi"] if value is not None)
    most = max(values[int(0.99 * (len(values) - 1))], 0.05) if values else 1.0
    end = float(columns[-1]["run_seconds"])
    begins = [0.0, *(float(column["run_seconds"]) for column in columns[:-1])]
    every = max(1, -(-len(names) // MAX_TENSORS))
    rows = []
    for index in range(0, len(names), every):
        pi = [column["mean_pi"][index] for column in columns]
        cells = [
            (begun, float(column["run_seconds"]), None if value is None else value / most)
            for begun, column, value in zip(begins, columns, pi, strict=True)
        ]
        known = [value for value in pi if value is not None]
        told = f"{names[index]}: mean {number(sum(known) / len(known))}" if known else f"{names[index]}: nothing moved"
        rows.append(f'<span class="name" title="{safe(told)}">{safe(names[index])}</span>{charts.strip(cells, end)}')
    left_out = f'<p class="about">Every {every}th of {len(names)} tensors.</p>' if every > 1 else ""
    return (
        f'<p class="scale"><span>0: blocked</span>{charts.ramp()}<span>≥ {number(most)}</span></p>'
        f'<div class="rows map">{"".join(rows)}<span></span><span class="ends"><span>0 s</span>'
        f"<span>{duration(end)}</span></span></div>{left_out}"
    )


def _workers(contents: Contents) -> str:
    workers, keeps_telemetry = _by_rank(contents), bool(contents.status.get("keeps_telemetry", True))
    headings = (
        "worker",
        "state",
        "device",
        "commits",
        "loss",
        "staleness",
        "pi",
        "blocked",
        "wait p50",
        "wait p99",
        "received",
        "sent",
    )
    texts = ("worker", "state", "device")
    head = "".join(f'<th scope="col"{_as_text(name in texts)}>{name}</th>' for name in headings)
    rows = []
    for worker in workers:
        cells = _worker_cells(worker, keeps_telemetry)
        rows.append(
            "<tr>"
            + "".join(f"<td{_as_text(name in texts)}>{cell}</td>" for name, cell in zip(headings, cells, strict=True))
            + "</tr>"
        )
    # Keyboard scrolling.
    frame = '<div class="frame" tabindex="0" role="region" aria-labelledby="workers-title">'
    table = f"{frame}<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    span = "over its last 20 commits or so" if keeps_telemetry else "of its last commit"
    about = (
        "Each worker as the server saw it last. Its loss is of its last commit, its staleness the mean since the "
        f"server started; pi and blocked are {span}."
    )
    return _panel("workers", "Workers", about, table if rows else "", "No worker joined.", full=True)


def _as_text(is_text: bool) -> str:
    return ' class="text"' if is_text else ""


def _worker_cells(worker: Mapping[str, Any], keeps_telemetry: bool) -> tuple[str, ...]:
    state, condition = word(worker.get("state")), word(worker.get("condition"))
    wrong = (
        f' <span class="wrong">{safe(condition)}</span>' if condition not in ("well", "unspecified", "unknown") else ""
    )
    return (
        safe(worker.get("name", "")),
        safe(state) + wrong,
        safe(worker.get("device", "")),
        f"{int(worker.get('commits', 0)):,}",
        number(worker.get("loss")),
        number(worker.get("staleness_mean")),
        number(status_view.recent(worker, "mean_pi")),
        percent(status_view.recent(worker, "blocked_fraction")),
        duration(worker.get("wait_p50_seconds") if keeps_telemetry else None),
        duration(worker.get("wait_p99_seconds") if keeps_telemetry else None),
        size(worker.get("bytes_received")),
        size(worker.get("bytes_sent")),
    )


def _settings(contents: Contents) -> str:
    summary = contents.summary
    groups = {
        "Training": summary.get("settings", {}).get("train"),
        "Server": summary.get("settings", {}).get("server"),
        "Worker": summary.get("settings", {}).get("worker"),
        "Evaluator": summary.get("settings", {}).get("evaluator"),
        "Text": summary.get("settings", {}).get("text"),
        "Versions": summary.get("versions"),
        "Machine": {**summary.get("hardware", {}), "git commit": summary.get("git_commit")} if summary else None,
    }
    parts = []
    for title, values in groups.items():
        rows = [
            f"<div><dt>{safe(name)}</dt><dd>{safe(_setting(value))}</dd></div>"
            for name, value in (values or {}).items()
            if value not in (None, "", [], {})
        ]
        if rows:
            parts.append(f'<h3>{title}</h3><dl class="settings">{"".join(rows)}</dl>')
    command = summary.get("settings", {}).get("command")
    if command:
        parts.insert(0, f"<p>Worker's command: <code>{safe(' '.join(command))}</code></p>")
    about = "What it takes to do it again; what was left empty is not listed."
    return _panel("settings", "Settings", about, "".join(parts), "summary.json would have them.", full=True)


def _setting(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _colophon(contents: Contents) -> str:
    version = contents.status.get("server_version", "")
    finished = contents.summary.get("finished")
    when = f", finished {safe(finished)}" if finished else ""
    return f"Made by gemps {safe(version)}{when}. This page is whole: it loads nothing and runs no script."


def _by_rank(contents: Contents) -> list[Mapping[str, Any]]:
    return sorted(contents.status.get("workers", ()), key=lambda worker: worker.get("rank", 0))


def _over_time(contents: Contents, field: str) -> list[tuple[float, float | None]]:
    return [(float(one["ends"]), one.get(field)) for one in contents.intervals]


def _evaluated(contents: Contents, field: str) -> list[tuple[float, float | None]]:
    return [(float(one["run_seconds"]), one.get(field)) for one in contents.evaluations]


def _curves(
    contents: Contents, about: str, curves: Sequence[Curve], *, from_zero: bool = True, most: float | None = None
) -> str:
    seconds = float(contents.status.get("run_seconds", 0))
    return charts.line_chart(about, curves, end=seconds, from_zero=from_zero, most=most)
