"""Says what this release removed, and what to use instead. The next release deletes these tables.

A removed option, key, variable or command ends `gemps` with exit code USAGE and one line, which begins with its name
and ends with a text from a table below. `ExplainingCommand` and `ExplainingGroup` check the command line, and
`options.Given` checks the TOML file and the environment.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gem_server.settings import ServerSettings
from gem_worker.settings import WorkerSettings
from pydantic_settings import BaseSettings
from typer.core import TyperCommand, TyperGroup

from gem_cli.errors import USAGE, CommandError
from gem_cli.setting_keys import fields, variable


@dataclass(frozen=True, slots=True)
class Gone:
    """A setting that was removed as a flag, as a key of the TOML file and as an environment variable."""

    instead: str
    """What to use instead; it completes the line "--name is gone: ..."."""
    settings: tuple[type[BaseSettings], ...]
    """The classes that had it. Only commands that load one of them refuse its environment variable."""


def _in_table(table: str, name: str, example: str) -> Gone:
    """A setting of the server that moved into a table of the file."""
    return Gone(
        f"write {name} below [{table}] in the file of --config, --set {table}.{name}={example}, or the variable "
        f"GEMPS_{table.upper()}_{name.upper()}",
        (ServerSettings,),
    )


_IN_THE_WORKERS = Gone(
    "workers divide their gradients themselves: leave the rule at auto, or write --direction auto, or --direction rms "
    "to orthogonalise nothing",
    (ServerSettings,),
)

# By the name that the field had, for example "chunk_bytes" for --chunk-bytes, chunk_bytes and GEMPS_CHUNK_BYTES.
SETTINGS: dict[str, Gone] = {
    "staging_buffers": _in_table("limits", "staging_buffers", "8"),
    "waiting_room": _in_table("limits", "waiting_room", "2048"),
    "max_sessions": _in_table("limits", "max_sessions", "2048"),
    "stall_timeout": _in_table("limits", "stall_timeout", "20"),
    "chunk_bytes": _in_table("limits", "chunk_bytes", "65536"),
    "threads": _in_table("limits", "threads", "4"),
    "exit_grace": _in_table("limits", "exit_grace", "60"),
    "exit_linger": _in_table("limits", "exit_linger", "30"),
    "tls_cert": _in_table("tls", "cert", "server.crt"),
    "tls_key": _in_table("tls", "key", "server.key"),
    "tls_client_ca": _in_table("tls", "client_ca", "ca.crt"),
    "tokens": _in_table("tls", "tokens", "tokens"),
    "momentum": Gone("write --rule-settings momentum=0.9", (ServerSettings,)),
    "kappa": Gone("write --rule-settings kappa=2", (ServerSettings,)),
    "pi_min": Gone("write --rule-settings pi_min=0", (ServerSettings,)),
    "pi_max": Gone("write --rule-settings pi_max=5", (ServerSettings,)),
    "epsilon": Gone("write --rule-settings epsilon=1e-12", (ServerSettings,)),
    "local_rate": Gone("write --rule-settings local_rate=0.3", (ServerSettings,)),
    **dict.fromkeys(("precondition", "beta2", "precondition_epsilon", "precondition_cap"), _IN_THE_WORKERS),
    "eta_warmup": Gone("write --eta-schedule warmup:200, or warmup:200,cosine with a schedule", (ServerSettings,)),
    "eta_step_every": Gone("write --eta-schedule step:400:0.1, every 400 commits times 0.1", (ServerSettings,)),
    "eta_step_factor": Gone("write --eta-schedule step:400:0.1, every 400 commits times 0.1", (ServerSettings,)),
    "eta_decay_commits": Gone("write --eta-schedule cosine:5000, which ends at commit 5000", (ServerSettings,)),
    "eta_min": Gone(
        "write --eta-schedule cosine:5000:0.001, or cosine:end:0.001 until the run ends", (ServerSettings,)
    ),
    "keep_moments": Gone(
        "leave it out; the moments of workers begin at 0 after a restart of the server", (ServerSettings,)
    ),
    "order_trace": Gone(
        "gemps replay FILE computes a recorded run again, gemps simulate --follow FILE its gradients, too",
        (ServerSettings,),
    ),
    "overlap": Gone(
        "on slow networks let the run have local steps, --local-steps 4 on the server, or narrower wire types",
        (WorkerSettings,),
    ),
    "metrics": Gone("--dashboard serves /metrics on its port", (ServerSettings,)),
    "telemetry": Gone("telemetry is always on", (ServerSettings,)),
    "state_type": Gone(
        "several servers divide the memory; use --shards with gemps train, or --shard with gemps serve",
        (ServerSettings,),
    ),
}

# Flags that other tools have, and that people therefore try here.
_IN_THE_SCRIPT = (
    "hand the script's optimizer to ParameterServer(optimizer=...), which keeps its learning rate; a built-in task, "
    "or a script without an optimizer, takes --eta"
)
OF_OTHERS: dict[str, str] = {
    "--lr": _IN_THE_SCRIPT,
    "--learning-rate": _IN_THE_SCRIPT,
    "--optimizer": _IN_THE_SCRIPT,
    "--optim": _IN_THE_SCRIPT,
}

# Removed commands, without "gemps".
COMMANDS: dict[str, str] = {
    "sample": 'gemps evaluate MODEL_FILE --sample 500 --prompt "..." writes text',
    "version": "gemps doctor prints the versions first, and gemps --version that of gemps",
    "merge": "use gemps shards merge",
    "split": "use gemps shards split",
    "top": "gemps status --watch shows the same screen",
    "report": "the run folder has plot.png and summary.json, and gemps train --dashboard 8080 shows a run in a browser",
}


class ExplainingCommand(TyperCommand):
    """A command that explains what to use instead of a removed flag."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Raises CommandError for a removed flag."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # By name: the class is click's, or, in newer releases, that of typer's own copy of click.
            if type(error).__name__ == "NoSuchOption":
                refuse_flag(error.option_name)  # type: ignore[attr-defined]
            raise


class ExplainingGroup(TyperGroup):
    """A group of commands that explains what to use instead of a removed command."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command. Raises CommandError for a removed command."""
        if args and args[0] in COMMANDS and not ctx.resilient_parsing:
            raise _error(f"gemps {args[0]}", COMMANDS[args[0]])
        return super().resolve_command(ctx, args)


def refuse_flag(flag: str) -> None:
    """Raise CommandError if `flag`, with its dashes, is gone, or is one that only other tools have."""
    if flag in OF_OTHERS:
        raise CommandError(f"gemps has no {flag}: {OF_OTHERS[flag]}", USAGE)
    setting = flag.removeprefix("--").removeprefix("no-").replace("-", "_")
    if setting in SETTINGS:
        raise _error(flag, SETTINGS[setting].instead)


def refuse_key(key: str, file: object) -> None:
    """Raise CommandError if `key` of the TOML file `file` is gone."""
    if key in SETTINGS:
        raise _error(f"--config {file}: {key}", SETTINGS[key].instead)


def refuse_set(key: str) -> None:
    """Raise CommandError if `key` of `--set` is gone."""
    if key in SETTINGS:
        raise _error(f"--set {key}", SETTINGS[key].instead)


def refuse_keys(settings: type[BaseSettings], keys: Iterable[str], file: object) -> None:
    """Raise CommandError if one of a file's keys is a setting that `settings` had, and another class still has."""
    for key in keys:
        if key in SETTINGS and settings in SETTINGS[key].settings:
            refuse_key(key, file)


def refuse_variables(settings: type[BaseSettings]) -> None:
    """Raise CommandError if the environment has a variable of a setting that `settings` had."""
    # The variables of the table [tls] are named as those of the settings that moved there.
    present = {variable(settings, key) for key in fields(settings)}
    for name, gone in SETTINGS.items():
        removed = variable(settings, name)
        if settings in gone.settings and removed in os.environ and removed not in present:
            raise _error(removed, gone.instead)


def variables() -> set[str]:
    """Return the environment variables that were removed."""
    return {variable(one, name) for name, gone in SETTINGS.items() for one in gone.settings}


def _error(what: str, instead: str) -> CommandError:
    return CommandError(f"{what} is gone: {instead}", USAGE)
