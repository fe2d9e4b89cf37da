"""Generate docs/settings.md from the settings classes (`python docs/generate_settings.py`).

What a setting does, its default and what it may be, the classes say. This file adds the page around them, and the unit
of every number. `--out FILE` writes elsewhere, for the freshness test.
"""

import argparse
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

from gem_cli.options import OptionGroup, choices_of, flag
from gem_cli.setting_keys import fields, tables, variable
from gem_cli.training.settings import TrainSettings
from gem_server.settings import ServerSettings
from gem_simulator.settings import SimulationSettings
from gem_worker.client.settings import ClientSettings
from gem_worker.evaluator_settings import EvaluatorSettings
from gem_worker.settings import WorkerSettings
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

PAGE = Path(__file__).resolve().parent / "settings.md"

INTRODUCTION = """\
<!-- Written by docs/generate_settings.py from the settings classes: change those, and run it. -->
# Settings

Every setting of the server, the workers and `gemps train` is an environment variable and a key in the TOML file of
`--config FILE` (or `GEMPS_CONFIG`), and most are a flag, named alike: `--batch-size 128`, `GEMPS_BATCH_SIZE=128`,
`batch_size = 128`. One file serves all commands.

What few people set stands in a table of the file, and has no flag: `threads = 4` below `[limits]`, or
`GEMPS_LIMITS_THREADS=4`. `--set KEY=VALUE` of `gemps serve`, `gemps train` and `gemps launch` takes the key of every
setting, `--set limits.threads=4`, and may be repeated. `gemps train` and `gemps launch` have flags only for what people
often set there; the rest goes through `--set` or the file.

A flag beats `--set`, `--set` beats the variable, the variable beats the file, and the file beats the default. `[rule]`
may hold the rule's `name` and its numbers together:

```toml
epochs = 20

[rule]
name = "gem"
momentum = 0.9

[limits]
threads = 4
```

A switch is a flag without a value and has an opposite, as `--resume` and `--no-resume`; its variable and its key are
`true` or `false`. A value that makes no sense is refused when the command starts, in one line that says where it came
from.

The server decides about update rule, learning rate, seed and budget and tells every worker, so no worker can differ.
`gemps status --json` shows what a running server uses, `summary.json` in a run folder what a training used.
"""


@dataclass(frozen=True, slots=True)
class Group:
    """The settings of one class, and what to say before them."""

    heading: str
    about: str
    settings: type[BaseSettings]
    has_flags: bool = True
    without_flags: frozenset[str] = frozenset()
    """Fields that no command has as an option; `--set` gives them."""


GROUPS = (
    Group(
        "Server",
        "For `gemps serve`, and for `gemps train` (as options or by `--set`) except `--data-dir`, `--ready-file`, "
        "`--exit-when-finished`, `--log-format` and those of shards, which it sets itself.",
        ServerSettings,
    ),
    Group(
        "Worker",
        "For `gemps work`, and for `gemps train` except `--server` and `--worker-name`, which it sets itself, and "
        "`--log-format`. `gemps evaluate` takes those about data, model and device. A script with a `ParameterServer` "
        "reads `GEMPS_SERVER`, `GEMPS_WORKER_NAME`, `GEMPS_NETWORK`, `GEMPS_DELTA_WIRE` and `GEMPS_PARAMETER_WIRE`, "
        "and no others.",
        WorkerSettings,
    ),
    Group(
        "Training on one machine",
        "For `gemps train`, in addition to those above.",
        TrainSettings,
        without_flags=frozenset({"report_interval", "worker_exit_timeout"}),
    ),
    Group(
        "Evaluator",
        "For `gemps evaluate --follow`, and for `gemps train` except `--keep-best`, since it keeps the best in the run "
        "folder.",
        EvaluatorSettings,
    ),
    Group(
        "Simulation",
        "Of `gemps simulate`. Names that stand above, too, mean the same.",
        SimulationSettings,
    ),
    Group(
        "Client library",
        "How patient a worker is with its network and its server, and how it proves who it is: for every command that "
        "talks to a server and a script with a `ParameterServer`. These are variables; some under Security are "
        "also flags, as `--credentials`. A script can also give `ParameterServer` a `ClientSettings` "
        "with these as fields.",
        ClientSettings,
        has_flags=False,
    ),
)

# Of every number. "number": it has no unit.
UNITS = {
    "times the others' median": "delta_norm",
    "seconds": "exit_grace exit_linger checkpoint_interval session_timeout stall_timeout log_interval report_interval "
    "evaluation_interval worker_exit_timeout "
    "connect_timeout progress_timeout heartbeat_interval backoff_first backoff_limit leave_timeout",
    "virtual seconds": "seconds network_time service_time",
    "bytes": "memory_limit chunk_bytes context",
    "bytes a second": "network_rate",
    "commits": "commits checkpoint_commits staging_buffers evaluate_every",
    "commits a worker": "steps",
    "epochs a worker": "epochs",
    "workers": "min_workers max_sessions workers",
    "servers": "shards",
    "calls": "waiting_room",
    "port": "lane_port",
    "threads": "threads loader_threads cpu_threads",
    "samples": "generated_samples batch_size",
    "classes": "generated_classes",
    "pixels": "image_size",
    "number": "weight_decay clip_norm eta seed stop_at_accuracy layers width heads",
    "gradients": "local_steps",
}
_UNIT = {name: unit for unit, names in UNITS.items() for name in names.split()}


def page() -> str:
    """Return the page. Raises SystemExit naming a number whose unit this file does not know."""
    parts = [INTRODUCTION]
    for group in GROUPS:
        parts.append(f"## {group.heading}\n\n{group.about}\n")
        for panel, rows in groupby(in_order(group.settings), key=lambda named: panel_of(named[1])):
            if panel:
                parts.append(f"### {panel}\n")
            parts.append("\n".join(table(group, rows)) + "\n")
        for name, settings in tables(group.settings).items():
            about = as_code(inspect.cleandoc(settings.__doc__ or "").partition(": ")[2])
            parts.append(f"### Table `[{name}]`\n\nNo flags. {about[0].upper()}{about[1:]}\n")
            rows = [named for named in fields(group.settings).items() if named[0].startswith(f"{name}.")]
            parts.append("\n".join(table(group, rows)) + "\n")
    return "\n".join(parts)


def in_order(settings: type[BaseSettings]) -> list[tuple[str, FieldInfo]]:
    """Return the fields outside tables, those of a panel together, panels in the order in which they first occur."""
    named_fields = [named for named in settings.model_fields.items() if named[0] not in tables(settings)]
    panels = list(dict.fromkeys(panel_of(field) for _, field in named_fields))
    return sorted(named_fields, key=lambda named: panels.index(panel_of(named[1])))


def panel_of(field: FieldInfo) -> str:
    """Return the heading under which help shows the field; "" without one."""
    return OptionGroup(BaseSettings, "").heading(field)


def table(group: Group, rows: Iterable[tuple[str, FieldInfo]]) -> Iterator[str]:
    """Yield the lines of a table with a row a setting."""
    yield "| setting | value | default | what it does |"
    yield "|---|---|---|---|"
    for name, field in rows:
        names = f"`{variable(group.settings, name)}`"
        if group.has_flags:
            is_key = "." in name or name in group.without_flags
            names = f"`{name if is_key else flag(name)}`<br>{names}"
        cells = (names, value(name.rpartition(".")[2], field), default(field), meaning(field))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def value(name: str, field: FieldInfo) -> str:
    """Return what may be given: `a`, `b` for a choice; a unit and bounds for a number."""
    kind = next((one for one in get_args(field.annotation) if one is not type(None)), field.annotation)
    if choices := choices_of(field):
        return ", ".join(f"`{one}`" for one in choices)
    if kind is bool:
        return "switch"
    if kind not in (int, float):
        return "path" if kind is Path else "text"
    if name not in _UNIT:
        sys.exit(f"docs/generate_settings.py: add {name} to UNITS, with its unit")
    return ", ".join([_UNIT[name], *bounds(field)])


def bounds(field: FieldInfo) -> Iterator[str]:
    """Yield `≥ 0`, `< 1` from the field's constraints."""
    for attribute, sign in (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤")):
        for one in field.metadata:
            if (limit := getattr(one, attribute, None)) is not None:
                yield f"{sign} {number(limit)}"


def default(field: FieldInfo) -> str:
    """Return the default as one would write it; "-" where there is none."""
    found = field.get_default(call_default_factory=True, validated_data={})
    if found in (None, ""):
        return "-"
    if isinstance(found, bool):
        return "on" if found else "off"
    return f"`{number(found)}`" if isinstance(found, int | float) else f"`{found}`"


def number(found: Any) -> str:
    """Return 30.0 as `30`, 1 << 63 as `2^63`, and the rest as Python writes it."""
    if found == 1 << 63:
        return "2^63"
    return str(int(found)) if isinstance(found, float) and found.is_integer() else str(found)


def meaning(field: FieldInfo) -> str:
    """Return the description: flags and variables in it as code, without the default, which has a column here."""
    return as_code(re.sub(r" \(default [^)]*\)", "", field.description or ""))


def as_code(text: str) -> str:
    """Return the text with flags and variables in it as code."""
    return re.sub(r"(?<![\w`-])(--[a-z][a-z-]*[a-z]|GEMPS_[A-Z_]+)", r"`\1`", text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=PAGE)
    parser.parse_args().out.write_text(page(), encoding="utf-8")
