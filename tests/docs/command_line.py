"""What the real command line says to a `gemps ...` line, without running it."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from gem_cli.commands.known import KNOWN
from gem_cli.main import app
from gem_cli.setting_keys import fields, flat, nested, variable
from gem_server.settings import ServerSettings
from gem_simulator.settings import SimulationSettings
from gem_worker.client import ClientSettings
from typer.main import get_command

from gem_core.rule_settings import split_rule_table

_COMMANDS: Any = get_command(app)  # click's classes, or the copy of them that newer versions of typer bring
ROOT = Path(__file__).resolve().parents[2]
# Of what a line may set: a client's settings cannot stand in the file of --config.
_SETTABLE = (*KNOWN, ClientSettings)


def _classes_of(command: str) -> tuple[Any, ...]:
    """A simulation has settings of its own: some names of a server's, with fewer values."""
    return tuple(one for one in _SETTABLE if (one is SimulationSettings) == (command == "simulate"))


OF_A_RUN = _classes_of("serve")


def flags() -> frozenset[str]:
    """Every flag of every command."""
    commands = [_COMMANDS, *_COMMANDS.commands.values()]
    commands += [part for command in commands[1:] for part in getattr(command, "commands", {}).values()]
    found = [option for command in commands for parameter in command.params for option in parameter.opts]
    return frozenset(found) | {"--help"} | {f"--no-{name[2:]}" for name in found}


def objection(arguments: Sequence[str], variables: Mapping[str, str]) -> str:
    """Return what is wrong with `gemps ARGUMENTS`, with these variables set; empty when nothing is.

    Without arguments the variables alone are judged.
    """
    if not arguments:
        return refused_settings({}, variables)
    name, *rest = arguments
    if name.startswith("-"):
        return "" if name in ("--version", "--help", "-h") else f"gemps has no option {name}"
    if name not in _COMMANDS.commands:
        return f"gemps has no command {name}"
    # A command's name alone is what a text calls it by.
    if {"--help", "--help-all"}.intersection(rest) or not (rest or variables):
        return ""
    command = _COMMANDS.commands[name]
    while parts := getattr(command, "commands", {}):  # gemps conformance list
        part = rest.pop(0) if rest else ""
        if part not in parts:
            return f"gemps {name} has no command {part}"
        name, command = f"{name} {part}", parts[part]
    if not (rest or variables):
        return ""
    try:
        given: dict[str, Any] = command.make_context(name, rest).params
    except Exception as error:
        return f"gemps {name}: {error}"
    own = {"data_dir": "a folder of the run"} if name == "train" else {}
    sets = dict(text.split("=", 1) for text in given.get("set") or ())
    if unknown := [key for key in sets if not any(key in fields(settings) for settings in KNOWN)]:
        return f"no setting is called {', '.join(unknown)}"
    return refused_settings({**nested(sets), **given, **own}, variables, _classes_of(name))


def refused_settings(given: Mapping[str, Any], variables: Mapping[str, str], classes: Sequence[Any] = OF_A_RUN) -> str:
    """Return what the settings classes say to flags (by field) and variables together; empty when nothing."""
    wrong = _unknown_variable(variables)
    if wrong:
        return wrong
    with pytest.MonkeyPatch.context() as environment:
        for settings in _SETTABLE:
            for name in fields(settings):
                environment.delenv(variable(settings, name), raising=False)
        for name, value in variables.items():
            environment.setenv(name, value)
        for settings in classes:
            values = {
                name: value for name, value in given.items() if name in settings.model_fields and value is not None
            }
            try:
                settings(**values)
            except ValueError as error:
                return str(error)
    return ""


def refused_keys(values: Mapping[str, Any]) -> str:
    """Return what is wrong with these keys of a TOML file and their values; empty when nothing is."""
    if isinstance(values.get("rule"), Mapping):
        values = {name: value for name, value in values.items() if name != "rule"} | split_rule_table(values["rule"])
    unknown = [key for key in flat(ServerSettings, values) if not any(key in fields(settings) for settings in KNOWN)]
    return f"no setting is called {', '.join(unknown)}" if unknown else refused_settings(values, {})


def _unknown_variable(variables: Mapping[str, str]) -> str:
    settings_of_gemps = {variable(settings, name) for settings in _SETTABLE for name in fields(settings)}
    of_compose = re.findall(r"\$\{(GEMPS_\w+)", (ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    known = {"GEMPS_CONFIG", *settings_of_gemps, *of_compose}
    unknown = [name for name in variables if name.startswith("GEMPS_") and name not in known]
    return f"nothing reads {', '.join(unknown)}" if unknown else ""
