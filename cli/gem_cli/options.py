"""Generates options from settings classes."""

import difflib
import functools
import inspect
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import typer
from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined
from pydantic_settings import BaseSettings
from rich.markup import escape

from gem_cli import gone
from gem_cli.errors import USAGE, CommandError
from gem_cli.short_help import HELP_ALL, name_common_options
from gem_core.regular_files import read_text
from gem_core.rule_settings import split_rule_table

Settings = TypeVar("Settings", bound=BaseSettings)


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """Settings taken as options."""

    settings: type[BaseSettings]
    panel: str
    without: frozenset[str] = frozenset()

    def fields(self) -> Iterator[tuple[str, FieldInfo]]:
        """(name, field) pairs."""
        return ((name, field) for name, field in self.settings.model_fields.items() if name not in self.without)

    def heading(self, field: FieldInfo) -> str:
        """The help panel."""
        extra = field.json_schema_extra
        return str(extra.get("panel", self.panel)) if isinstance(extra, dict) else self.panel


class Given:
    """Command-line values, completed by `load`."""

    def __init__(
        self,
        values: Mapping[type[BaseSettings], Mapping[str, Any]],
        config: Path | None,
        known: Sequence[type[BaseSettings]],
    ) -> None:
        self._values = values
        self._config = config
        self._known = known
        self._file = {} if config is None else _read_toml(config, known)

    def load(
        self, settings: type[Settings], *, fallback: Mapping[str, Any] = MappingProxyType({}), **overrides: Any
    ) -> Settings:
        """Valid settings. Raises CommandError with the bad value's source.

        `overrides` beat everything, `fallback` only defaults.
        """
        gone.refuse_variables(settings)
        given = {**self._values.get(settings, {}), **overrides}
        environment = {name for name in settings.model_fields if variable(settings, name) in os.environ}
        from_file = {
            name: value
            for name, value in self._file.items()
            if settings in self._known
            and name in settings.model_fields
            and name not in environment
            and name not in given
        }
        rest = {name: value for name, value in fallback.items() if name not in {*given, *environment, *from_file}}
        try:
            return settings(**rest, **from_file, **given)
        except ValidationError as error:
            origins = {name: _from_environment(settings, name) for name in environment}
            origins |= {name: f"{self._config}: {name} = {value!r}" for name, value in from_file.items()}
            origins |= {name: f"{flag(name)} {value}" for name, value in given.items()}
            raise CommandError(explain(error, origins), USAGE) from None

    def has_flag(self, settings: type[BaseSettings], name: str) -> bool:
        """Whether the flag was given."""
        return name in self.flags(settings)

    def flags(self, settings: type[BaseSettings]) -> list[str]:
        """Names of settings given as flags."""
        return list(self._values.get(settings, {}))

    def arguments(self, settings: type[BaseSettings]) -> list[str]:
        """Flags for child processes."""
        file = [] if self._config is None else ["--config", str(self._config.resolve())]
        return file + to_arguments(self._values.get(settings, {}))


def to_arguments(values: Mapping[str, object]) -> list[str]:
    """Convert values to flags: `--eta=0.1`, `--resume`, `--no-reflection`."""
    arguments = []
    for name, value in values.items():
        if isinstance(value, bool):
            arguments.append(flag(name) if value else "--no-" + flag(name)[2:])
        else:
            arguments.append(f"{flag(name)}={value}")
    return arguments


def help_text(command: Callable[..., None]) -> str:
    """The docstring, one line per paragraph."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(one if one.startswith(" ") else " ".join(one.splitlines()) for one in paragraphs)


def flag(name: str) -> str:
    """`chunk_bytes` -> `--chunk-bytes`."""
    return "--" + name.replace("_", "-")


def variable(settings: type[BaseSettings], name: str) -> str:
    """`chunk_bytes` -> `GEMPS_CHUNK_BYTES`."""
    return f"{settings.model_config.get('env_prefix', '')}{name}".upper()


def with_options(
    *groups: OptionGroup, known: Sequence[type[BaseSettings]], common: Collection[str] = ()
) -> Callable[..., Callable[..., None]]:
    """Add options and `--config` to a command `f(given, ...)`.

    Args:
        groups: settings that become options of the command.
        known: settings classes whose fields are the keys of the file that `--config` names.
        common: names of the parameters that `--help` shows; the command then has `--help-all`, which shows every
            option. If empty, `--help` shows every option.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]
        made = [_parameter(group, *named) for group in groups for named in group.fields()]
        helps = [_HELP_ALL] if common else []
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *made, _CONFIG, *helps)]

        @functools.wraps(command)
        def run(**arguments: Any) -> None:
            given = {
                group.settings: {name: arguments[name] for name, _ in group.fields() if arguments[name] is not None}
                for group in groups
            }
            command(given=Given(given, arguments["config"], known), **{p.name: arguments[p.name] for p in own})

        run.__dict__["__signature__"] = inspect.Signature(parameters)
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        if common:
            name_common_options(run, common)
        return run

    return decorate


def _parameter(group: OptionGroup, name: str, field: FieldInfo) -> inspect.Parameter:
    kind = _plain_type(field.annotation)
    choices = choices_of(field)
    notes = ["one of " + ", ".join(choices)] if choices else []
    notes.append(variable(group.settings, name))
    default = field.get_default(call_default_factory=True, validated_data={})
    if default not in (None, "", PydanticUndefined):
        notes.append(f"default {str(default).lower() if kind is bool else default}")
    option: dict[str, Any] = {
        "help": f"{escape(field.description or '')} [dim]({escape('; '.join(notes))})[/dim]",
        "rich_help_panel": group.heading(field),
        "show_default": False,
    }
    annotation: Any
    if kind is bool:
        declarations = [f"{flag(name)}/--no-{flag(name)[2:]}"]
        annotation = bool | None
    else:
        declarations = [flag(name)]
        annotation = str | None
        option["metavar"] = "<choice>" if choices else _METAVARS.get(kind, "<text>")
        if choices:
            option["autocompletion"] = lambda incomplete: [one for one in choices if one.startswith(incomplete)]
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[annotation, typer.Option(*declarations, **option)],
    )


_CONFIG = inspect.Parameter(
    "config",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Path | None,
        typer.Option(
            "--config",
            envvar="GEMPS_CONFIG",
            metavar="FILE",
            help="TOML file with settings. Its keys are the names of the flags with underscores, for example "
            "chunk_bytes = 65536. Environment variables take precedence over the file, and flags over both.",
        ),
    ],
)

_HELP_ALL = inspect.Parameter("help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=HELP_ALL)

_METAVARS: Mapping[Any, str] = {int: "<integer>", float: "<number>", Path: "<path>"}


def _plain_type(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, UnionType):
        (annotation, *_) = [one for one in get_args(annotation) if one is not type(None)]
    return annotation


def choices_of(field: FieldInfo) -> list[str]:
    """Literal values or `choices`."""
    kind = _plain_type(field.annotation)
    if get_origin(kind) is Literal:
        return [str(one) for one in get_args(kind)]
    extra = field.json_schema_extra
    named = extra.get("choices") if isinstance(extra, dict) else None
    return [str(one) for one in named] if isinstance(named, list) else []


def _from_environment(settings: type[BaseSettings], name: str) -> str:
    named = variable(settings, name)
    return named if _plain_type(settings.model_fields[name].annotation) is SecretStr else f"{named}={os.environ[named]}"


def _read_toml(path: Path, settings: Sequence[type[BaseSettings]]) -> dict[str, Any]:
    known = {name for one in settings for name in one.model_fields}
    try:
        values = tomllib.loads(read_text(path))
    except OSError as error:
        raise CommandError(f"--config {path}: {error.strerror}", USAGE) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CommandError(f"--config {path} is not TOML: {error}", USAGE) from None
    if isinstance(table := values.get("rule"), dict):
        values = {name: value for name, value in values.items() if name != "rule"} | split_rule_table(table)
    for key in values:
        if key not in known:
            gone.refuse_key(key, path)
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "`gemps train --help-all` lists the names of all settings"
            raise CommandError(f"--config {path}: there is no setting {key!r}; {hint}", USAGE)
    return values


_FOLLOWS_FROM_ANOTHER = "default_factory_not_called"


def explain(error: ValidationError, origins: Mapping[str, str]) -> str:
    """Format pydantic's errors."""
    return "; ".join(_line(one, origins) for one in error.errors() if one["type"] != _FOLLOWS_FROM_ANOTHER)


def _line(error: ErrorDetails, origins: Mapping[str, str]) -> str:
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if not error["loc"]:
        named = set(re.findall(r"--[a-z0-9-]+", message))
        elsewhere = [origin for name, origin in origins.items() if flag(name) in named and not origin.startswith("--")]
        return message + (f" (here: {', '.join(elsewhere)})" if elsewhere else "")
    name = str(error["loc"][0])
    return f"{origins.get(name, flag(name))}: {message}"
