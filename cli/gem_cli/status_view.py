"""Formats a `gemps.v1.RunStatus`, given as a dict, as text and tables."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from gem_core.visible_text import escape_invisible

Status = Mapping[str, Any]

_STATES = {"TRAINING": "green", "FINISHED": "cyan", "WAITING": "yellow", "JOINED": "yellow"}
LIVE = ("JOINED", "TRAINING", "FINISHED")  # have sessions
# Of WorkerCondition (status.proto) those that need a look, worst first.
TROUBLE = {"SILENT": "bold yellow", "GONE": "bold red", "MUTED": "bold magenta", "SLOW": "bold cyan"}
_SEVERITIES = {"CRITICAL": "bold red", "WARNING": "bold yellow"}
_LONGEST_PROBLEM = 500  # characters of its text, or its fix
_LARGE = 1e9


def state(status: Status, field: str = "run_state") -> str:
    """Return a state without its prefix, such as `TRAINING` for RUN_STATE_TRAINING or WORKER_STATE_TRAINING."""
    return str(status.get(field, "")).rpartition("STATE_")[2] or "UNKNOWN"


def clock(status: Status) -> int:
    """Return the clock, or 0 if there are no parameters."""
    return int(status.get("version", {}).get("clock", 0))


def live_workers(status: Status) -> int:
    """Count workers with sessions."""
    return sum(state(worker, "state") in LIVE for worker in status.get("workers", ()))


def has_finished(status: Status, name: str) -> bool:
    """Whether the worker of this name has spent its budget."""
    return any(one.get("name") == name and state(one, "state") == "FINISHED" for one in status.get("workers", ()))


def missing_workers(status: Status) -> int:
    """Number of workers that must still join before training starts."""
    if "missing_workers" in status:
        return int(status["missing_workers"])
    wanted = int(status.get("settings", {}).get("min_workers", 1))  # of an older server
    return max(0, wanted - live_workers(status))


def describe_waiting(status: Status) -> str:
    """Say what a run without a commit in this process waits for. Empty if it trains or is finished."""
    live = live_workers(status)
    if state(status) == "WAITING":
        missing = missing_workers(status)
        if not missing:
            return f"waiting: {_joined(live)}, and none has brought the first parameters"
        return f"waiting: {live} of {live + missing} workers have joined, {missing} missing"
    if state(status) == "TRAINING" and live and not int(status.get("commits_of_process", 1)):
        return f"waiting: {_joined(live)}, and the first commit has not come"
    return ""


def workers_in_words(count: int) -> str:
    """Return a number of workers in words: `1 worker`, `3 workers`."""
    return f"{count} worker{'s' if count != 1 else ''}"


def _joined(count: int) -> str:
    return f"{workers_in_words(count)} {'has' if count == 1 else 'have'} joined"


def condition(worker: Status) -> str:
    """Return the worker's condition, which is `WELL`, `DEPARTED` or one of TROUBLE."""
    return str(worker.get("condition", "")).rpartition("CONDITION_")[2] or "WELL"


def number(value: Any, digits: int = 3) -> str:
    """Format a number briefly: `0.123`, `12.3`, `1234`, `1.2e+09`; `-` for None."""
    if value is None:
        return "-"
    value = float(value)  # may be text
    if abs(value) >= _LARGE:
        return f"{value:.1e}"
    if value != value or abs(value) >= 10**digits or value == 0:
        return f"{value:.0f}"
    return f"{value:.{digits}g}"


def figures(status: Status) -> dict[str, float | None]:
    """Return the means over the newest commits of the live workers, or of all workers if none is live."""
    names = {"loss": "loss", "staleness": "staleness_mean", "mean_pi": "mean_pi", "blocked": "blocked_fraction"}
    names |= {"clamped": "clamped_fraction"}
    return {name: status.get(field) for name, field in names.items()}


def run_means(status: Status) -> dict[str, float | None]:
    """Return the means over all commits of the run, with the names of `figures`. None if they are unknown."""
    means = status.get("means") or {}
    names = {"staleness": "staleness_mean", "mean_pi": "mean_pi", "blocked": "blocked_fraction"}
    names |= {"clamped": "clamped_fraction"}
    return {name: means.get(field) for name, field in names.items()}


def mean_rate(status: Status) -> float | None:
    """Return the commits a second of this server process over all its training time. None if it has not trained."""
    seconds = float(status.get("run_seconds", 0))
    return int(status.get("commits_of_process", status.get("commits", 0))) / seconds if seconds else None


def speed(status: Status) -> str:
    """Return the updates a second in words, over the last ten seconds or, if the run is finished, in the mean."""
    if state(status) != "FINISHED":
        return f"{number(status.get('commits_per_second'))} updates/s"
    is_resumed = status.get("commits_of_process", status.get("commits", 0)) < status.get("commits", 0)
    return f"{number(mean_rate(status))} updates/s {'since the restart' if is_resumed else 'in the mean'}"


def plain_line(status: Status) -> str:
    """Describe the run in one line: by its newest figures while it trains, and by its means when it is finished."""
    if waiting := describe_waiting(status):
        return f"{waiting}, version {clock(status)}"
    is_over = state(status) == "FINISHED"
    values = run_means(status) if is_over else figures(status)
    loss = f"loss {number(figures(status)['loss'])}"
    held_out = [f"held out {text}" for text in held_out_loss(status)]
    rest = [
        f"staleness {number(values['staleness'])}",
        f"pi {number(values['mean_pi'])}",
        f"blocked {percent(values['blocked'])}",
    ]
    if is_over:
        rest[0] = f"means of the run: {rest[0]}"
    else:
        loss = f"newest commits: {loss}"
    live = live_workers(status)
    parts = [
        f"{status.get('run_seconds', 0):6.1f} s",
        f"{state(status).lower()}",
        f"version {clock(status)}",
        speed(status),
        *([loss, *held_out] if is_over else [*held_out, loss]),
        *rest,
        f"fairness {number(status.get('jain_index'))}",
        workers_in_words(live),
    ]
    return "  ".join(parts)


def plain_report(status: Status) -> str:
    """Describe the run in plain lines."""
    lines = [f"{severity(one)} {problem_line(one)}" for one in problems(status)]
    lines += [plain_line(status), *(f"{name}: {value}" for name, value in facts(status))]
    for row in (*map(shard_cells, shards(status)), *map(_cells, status.get("workers", ()))):
        (kind, name), *cells = row.items()
        lines.append(f"{kind} {name}: " + ", ".join(f"{heading} {cell}" for heading, cell in cells))
    if status.get("workers"):
        lines.append(OF_WORKERS)
    return "\n".join(lines)


def problems(status: Status) -> Sequence[Status]:
    """Return the problems of the run, the worst ones first."""
    found: Sequence[Status] = status.get("problems", ())
    return found


def severity(problem: Status) -> str:
    """Return the severity of a problem: `CRITICAL` or `WARNING`."""
    found = str(problem.get("severity", "")).rpartition("SEVERITY_")[2]
    return found if found in _SEVERITIES else "WARNING"


def problem_text(problem: Status) -> str:
    """What has happened, and what to do about it."""
    text, fix = (printable(str(problem.get(field, "")), _LONGEST_PROBLEM) for field in ("text", "fix"))
    return f"{text}. {fix[:1].upper()}{fix[1:]}"


def problem_line(problem: Status) -> str:
    """As `disk-space (30 s): worker-0: the disk ... Free some room`."""
    names = ", ".join(printable(name) for name in problem.get("workers", ()))
    kind, seconds = printable(str(problem.get("kind", ""))), float(problem.get("seconds", 0))
    return f"{kind} ({seconds:.0f} s): {f'{names}: ' if names else ''}{problem_text(problem)}"


def shards(status: Status) -> Sequence[Status]:
    """Return the servers' statuses if several hold the model, otherwise nothing."""
    servers: Sequence[Status] = status.get("shards", {}).get("servers", ())
    return servers


def shard_cells(shard: Status) -> dict[str, str]:
    """Return the cells of a server's row by their headings."""
    return {
        "shard": str(shard["index"]),
        "state": "ready" if shard["ready"] else "starting" if shard["address"] else "lost",
        "address": printable(shard["address"], 40) or "-",
        "elements": f"[{shard['begin']:,}, {shard['end']:,})",
        "clock": str(shard["clock"]),
        "memory": mib(shard, "anonymous_bytes"),
    }


def held_out_loss(status: Status) -> list[str]:
    """Return the loss of the newest evaluation, for a text with its bits a character."""
    seen = status.get("last_evaluation")
    return [number(seen["loss"]) + bits(seen)] if seen else []


def bits(evaluation: Mapping[str, Any]) -> str:
    """Return a text such as `, 3.03 bits a character`, or an empty one."""
    found = evaluation.get("bits_per_character")
    return "" if found is None else f", {number(found)} bits a character"


def describe_evaluation(evaluation: Mapping[str, Any]) -> str:
    """Describe an evaluation in words."""
    in_bits, loss = evaluation.get("bits_per_character"), evaluation["loss"]
    loss = f"{loss:.4f}" if abs(loss) < _LARGE else number(loss)
    of_text = "" if in_bits is None else f" nats, {in_bits:.4f} bits a character,"
    return f"accuracy {evaluation['accuracy']:.4f}, loss {loss}{of_text} on {evaluation['samples']} samples"


def report(status: Status, *, width: int) -> RenderableType:
    """Describe the run in tables that are at most `width` columns wide."""
    grid = Table.grid(padding=(0, 2))
    for name, value in facts(status):
        grid.add_row(Text(name, "dim"), Text(value))
    tables = [shard_table(status)] if shards(status) else []
    above = [Text(f"{severity(one)} {problem_line(one)}", _SEVERITIES[severity(one)]) for one in problems(status)]
    return Group(*above, summary_panel(status, grid), *tables, worker_table(status, width=width))


def summary_panel(status: Status, body: RenderableType) -> Panel:
    """Put `body` into a panel whose title describes the run."""
    run_state = state(status)
    rule = status.get("settings", {}).get("rule") or "gemps"
    title = (
        f"[bold]{escape(rule)}[/bold] · [{_STATES.get(run_state, 'white')}]{run_state.lower()}[/] · "
        f"version {clock(status)} · {speed(status)}"
    )
    return Panel(body, title=title, title_align="left", border_style="dim")


def run_figures(status: Status) -> Table:
    """Return a table of training figures: of the newest commits while the run trains, then the means."""
    grid = Table.grid(padding=(0, 3))
    held_out = held_out_loss(status)
    of_evaluation = ("held out",) if held_out else ()
    is_over = state(status) == "FINISHED"
    found = run_means(status) if is_over else figures(status)
    of_what = "run" if is_over else "newest"
    names = (
        *("loss (newest)", *of_evaluation, f"staleness ({of_what})", f"mean pi ({of_what})", f"blocked ({of_what})"),
        *("fairness (Jain)", "eta", "workers"),
    )
    values = (
        number(figures(status)["loss"]),
        *held_out,
        number(found["staleness"]),
        number(found["mean_pi"]),
        percent(found["blocked"]),
        number(status.get("jain_index"), 4),
        "-" if is_eta_open(status) else number(status.get("next_eta")),
        str(live_workers(status)),
    )
    grid.add_row(*(f"[dim]{name}[/dim]" for name in names))
    grid.add_row(*(f"[bold]{value}[/bold]" for value in values))
    return grid


def shard_table(status: Status) -> Table:
    """Return a table with a row for each of several servers."""
    found = [shard_cells(one) for one in shards(status)]
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for name in found[0]:
        table.add_column(name, justify="left" if name in ("state", "address") else "right", no_wrap=True)
    for cells in found:
        style = "green" if cells["state"] == "ready" else "bold red"
        table.add_row(*(Text(cell, style if name == "state" else "") for name, cell in cells.items()))
    return table


_TRANSPORTS = {"GRPC": "gRPC", "LANE": "lane", "SHARED_MEMORY": "shared-memory"}
_LEFT = ("worker", "state", "device", "host", "exchange")
# Further columns of the table, by the width of the terminal that they need.
_WIDTHS = dict.fromkeys(("rank", "device", "exchange", "wait ms"), 120) | {"local steps": 160, "host": 160}


def worker_table(status: Status, *, width: int, rows: int | None = None) -> Table:
    """Return a table with a row for each worker by rank, with at most `rows` rows."""
    workers = sorted(status.get("workers", ()), key=lambda worker: worker.get("rank", 0))
    shown = workers if rows is None or len(workers) <= rows else workers[: rows - 1]
    headings = [name for name in _cells({}) if width >= _WIDTHS.get(name, 0)]
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for name in headings:
        table.add_column(name, justify="left" if name in _LEFT else "right", no_wrap=True)
    for worker in shown:
        cells = _cells(worker)
        style = TROUBLE.get(condition(worker)) or _STATES.get(state(worker, "state"), "red")
        table.add_row(*(Text(cells[name], style if name == "state" else "") for name in headings))
    if len(shown) < len(workers):
        table.add_row(Text(f"and {len(workers) - len(shown)} more", "dim"))
    return table


# Legend of the rows of workers.
OF_WORKERS = (
    "Of workers: commits/s over the last ten seconds; loss of the newest commit; staleness and wait, means since the "
    "server started; pi and blocked, means of the last 20 commits or so."
)


def recent(worker: Status, field: str) -> Any:
    """Return a worker's mean over about its last 20 commits, or without telemetry the figure of its last commit."""
    return worker.get(f"recent_{field}", worker.get("statistics", {}).get(field))


def _cells(worker: Status) -> dict[str, str]:
    return {
        "worker": printable(worker.get("name", "")),
        "rank": str(worker.get("rank", "")),
        "state": _worker_state(worker),
        "device": printable(worker.get("device", "")),
        "host": host(worker),
        "exchange": exchange(worker),
        "commits": str(worker.get("commits", 0)),
        "local steps": str(worker.get("local_steps", 0)),
        "commits/s": number(worker.get("commits_per_second")),
        "loss": number(worker.get("loss")),
        "staleness": number(worker.get("staleness_mean")),
        "pi": number(recent(worker, "mean_pi")),
        "blocked": percent(recent(worker, "blocked_fraction")),
        "wait ms": number(1000 * float(worker.get("wait_mean_seconds", 0))),
    }


def _worker_state(worker: Status) -> str:
    found = condition(worker)
    if worker.get("quarantined"):
        return "quarantined"
    if found == "SILENT":
        return f"silent {worker['seconds_since_last_call']:.0f} s"
    return found.lower() if found in TROUBLE else state(worker, "state").lower()


def host(worker: Status) -> str:
    """Return the worker's host and what started it."""
    name, engine = (printable(worker.get(field, "")) for field in ("host_name", "engine"))
    return f"{name} ({engine})" if engine else name or "-"


def exchange(worker: Status) -> str:
    """Return the transport of the worker's last commit, or "network" before the first."""
    transport = str(worker.get("transport", "")).rpartition("KIND_")[2]
    if transport in _TRANSPORTS:
        return _TRANSPORTS[transport]
    if worker.get("shares_memory"):
        return "shared-memory"
    return "network" if state(worker, "state") in ("JOINED", "TRAINING") else "-"


def wire_types(worker: Status) -> str:
    """Describe the wire types, such as `sparse deltas and int4 parameters`. Empty if they are unknown."""
    names = [str(worker.get(f"{tensors}_wire_type", "")) for tensors in ("delta", "parameter")]
    if not all(names) or "WIRE_TYPE_UNSPECIFIED" in names:
        return ""
    deltas, parameters = (name.removeprefix("WIRE_TYPE_").removesuffix("_BLOCK").lower() for name in names)
    return f"{deltas} deltas and {parameters} parameters"


def wire_type_counts(workers: Iterable[Status]) -> dict[str, int]:
    """Describe how many workers use which wire types."""
    return dict(sorted(Counter(filter(None, map(wire_types, workers))).items()))


def printable(text: str, limit: int = 24) -> str:
    """Return at most `limit` characters of a peer's text, with escapes for characters that people would not see."""
    shown = escape_invisible(text)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def run_in_words(status: Status) -> str:
    """Name and id of the run; "-" if unknown, as of older servers."""
    name, identity = printable(str(status.get("run_name", "")), 64), str(status.get("run_id", ""))
    return f"{name} (id {identity})" if name else identity or "-"


def rule_name(settings: Mapping[str, Any]) -> str:
    """Return the rule's name with its direction, or with the optimizer that it follows. Empty if it is unknown."""
    rule = str(settings.get("rule") or "")
    if recipe := settings.get("recipe"):
        return f"{rule} by {printable(str(recipe.get('optimizer')))}"
    return f"{rule} of {settings['direction']} directions" if settings.get("direction") else rule


def rule_line(status: Status) -> str:
    """Describe in one line what the run does with commits, and who decided it. "-" if this is unknown."""
    told = printable(str(status.get("rule", "")), 500)  # absent of older servers
    return told.removeprefix("rule ") or rule_name(status.get("settings", {})) or "-"


def is_eta_open(status: Status) -> bool:
    """Whether the server has no learning rate: the first worker will decide it, or workers' optimizers have theirs."""
    settings = status.get("settings", {})
    return "rule" in settings and not settings.get("eta")


def eta_in_words(status: Status) -> str:
    """Return the learning rate of the next commit, or say who decides it."""
    settings = status.get("settings", {})
    if recipe := settings.get("recipe"):
        return f"{number(settings.get('eta'))} of {printable(str(recipe.get('optimizer')))}, and its schedule"
    if not is_eta_open(status):
        return f"{number(status.get('next_eta'))} now, {number(settings.get('eta'))} set"
    return "the first worker decides" if settings["rule"] == "auto" else "that of each worker's optimizer"


def facts(status: Status) -> list[tuple[str, str]]:
    """Return further facts about the run as pairs of a name and a value."""
    return [
        *_facts_of_settings(status),
        *_facts_of_server(status),
        *_facts_of_workers(status),
        *_facts_of_evaluations(status),
    ]


def _facts_of_settings(status: Status) -> list[tuple[str, str]]:
    settings = status.get("settings", {})
    numbers = " ".join(f"{name}={number(value)}" for name, value in sorted(settings.get("rule_settings", {}).items()))
    budget = ", ".join(
        f"{number(amount)} {name}" for name, amount in settings.get("budget", {}).items() if float(amount) > 0
    )
    return [
        ("run", run_in_words(status)),
        ("rule", rule_line(status)),
        ("rule settings", numbers or "none"),
        ("eta", eta_in_words(status)),
        ("budget", budget or "none"),
        ("order", str(settings.get("order", "")).rpartition("ORDER_")[2].lower().replace("_", "-")),
    ]


def _facts_of_server(status: Status) -> list[tuple[str, str]]:
    queue, memory = status.get("queue", {}), status.get("memory", {})
    found = [
        ("model", f"{status.get('parameter_count', 0):,} parameters in {status.get('tensor_count', 0)} tensors"),
        ("commits", _commits(status)),
        ("queue", f"{queue.get('length', 0)} complete, {queue.get('waiting', 0)} waiting for a buffer"),
        ("buffers", f"{queue.get('staging_buffers_in_use', 0)} of {queue.get('staging_buffers', 0)} in use"),
        ("memory", f"{mib(memory, 'reserved_bytes')} promised of {mib(memory, 'limit_bytes')}"),
        ("checkpoint", str(status.get("checkpoint", {}).get("path", "")) or "none"),
        ("server", f"gemps {status.get('server_version', '')}, up {number(status.get('uptime_seconds'))} s"),
    ]
    if several := status.get("shards"):
        ready = sum(one["ready"] for one in several["servers"])
        is_secondary = bool(several["primary"])
        text = f"{several['index']}/{several['count']}"
        text += f"; primary at {several['primary']}" if is_secondary else f"; {ready} of {several['count']} ready"
        found.append(("shard", text))
    return found


def _facts_of_workers(status: Status) -> list[tuple[str, str]]:
    found = []
    workers = [worker for worker in status.get("workers", ()) if state(worker, "state") in LIVE]
    ways = Counter(way for way in map(exchange, workers) if way in _TRANSPORTS.values())
    if ways:
        found.append(("exchange", ", ".join(f"{count} over {way}" for way, count in sorted(ways.items()))))
    if wires := wire_type_counts(workers):
        found.append(("wire types", "; ".join(f"{count} with {types}" for types, count in wires.items())))
    return found


def _facts_of_evaluations(status: Status) -> list[tuple[str, str]]:
    best = status.get("best_evaluation")
    if not best:
        return []
    text = f"accuracy {best['accuracy']:.4f}, loss {number(best['loss'])}{bits(best)} at version {clock(best)}"
    return [("best evaluation", text)]


def _commits(status: Status) -> str:
    commits, seconds = status.get("commits", 0), f"{number(status.get('run_seconds'))} s"
    of_process = status.get("commits_of_process", commits)  # absent from older servers
    if of_process == commits:
        return f"{commits:,} applied in {seconds}"
    return f"{commits:,} applied, {of_process:,} of them by this server process in {seconds}"


def percent(fraction: Any) -> str:
    """Format a fraction such as `12.5 %`, or `-`."""
    return "-" if fraction is None else f"{100 * float(fraction):.1f} %"


def mib(memory: Status, field: str) -> str:
    """Return a field of the memory statistics in MiB."""
    return f"{number(memory.get(field, 0) / 2**20)} MiB"
