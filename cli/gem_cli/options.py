"""Generates options from settings classes."""

import difflib
import functools
import inspect
import os
import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
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
from gem_cli.setting_keys import fields, flat, nested, tables, variable
from gem_cli.short_help import HELP_ALL, name_common_options
from gem_core.regular_files import read_text
from gem_core.rule_settings import split_rule_table

Settings = TypeVar("Settings", bound=BaseSettings)


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """Settings that a command takes.

    Attributes:
        settings: their class.
        panel: heading of their options in help, unless a field names another.
        without: names of those that the command does not take, because it sets them itself.
        flags: names of those that are options; the others are given by `--set`. None: all that are in no table.
    """

    settings: type[BaseSettings]
    panel: str
    without: frozenset[str] = frozenset()
    flags: frozenset[str] | None = None

    def options(self) -> dict[str, FieldInfo]:
        """The fields that are options, by name."""
        names = self.settings.model_fields.keys() - tables(self.settings).keys() - self.without
        shown = names if self.flags is None else names & self.flags
        return {name: field for name, field in self.settings.model_fields.items() if name in shown}

    def settable(self) -> set[str]:
        """The keys that `--set` takes: of options, too."""
        return fields(self.settings).keys() - self.without

    def heading(self, field: FieldInfo) -> str:
        """The help panel."""
        extra = field.json_schema_extra
        return str(extra.get("panel", self.panel)) if isinstance(extra, dict) else self.panel


Values = Mapping[type[BaseSettings], Mapping[str, Any]]


class Given:
    """What a command line gives, completed by `load` from the environment and the file.

    `flags` has what options give, by class and name; `sets` what `--set` gives, by class and key.
    """

    def __init__(
        self,
        flags: Values,
        config: Path | None,
        known: Sequence[type[BaseSettings]],
        sets: Values = MappingProxyType({}),
    ) -> None:
        self._flags = flags
        self._sets = sets
        self._config = config
        self._known = known
        self._file = {} if config is None else _read_toml(config, known)

    def load(
        self, settings: type[Settings], *, fallback: Mapping[str, Any] = MappingProxyType({}), **overrides: Any
    ) -> Settings:
        """Valid settings. Raises CommandError with the bad value's source.

        `overrides`, by key, beat everything, `fallback` only defaults.
        """
        gone.refuse_variables(settings)
        _refuse_unknown_variables(settings)
        if self._config is not None:
            gone.refuse_keys(settings, self._file, self._config)
        given = self.values(settings) | overrides
        environment = {key for key in fields(settings) if variable(settings, key) in os.environ}
        known = fields(settings).keys() - environment - given.keys() if settings in self._known else set()
        from_file = {key: value for key, value in self._file.items() if key in known}
        rest = {key: value for key, value in fallback.items() if key not in {*given, *environment, *from_file}}
        try:
            return settings(**nested({**rest, **from_file, **given}))
        except ValidationError as error:
            origins = {key: _from_environment(settings, key) for key in environment}
            whole = {table: variable(settings, table) for table in tables(settings)}
            origins |= {table: f"{name}={os.environ[name]}" for table, name in whole.items() if name in os.environ}
            origins |= {key: f"{self._config}: {key} = {value!r}" for key, value in from_file.items()}
            origins |= {key: f"{self._spelt(settings, key)} {value}" for key, value in given.items()}
            raise CommandError(explain(error, origins), USAGE) from None

    def values(self, settings: type[BaseSettings]) -> dict[str, Any]:
        """What the command line gives of these settings, by key. Options beat `--set`."""
        return {**self._sets.get(settings, {}), **self._flags.get(settings, {})}

    def spelt(self, settings: type[BaseSettings]) -> dict[str, str]:
        """How the command line gives each of these settings, by key: `--eta`, `--set limits.threads`."""
        return {key: self._spelt(settings, key) for key in self.values(settings)}

    def arguments(self, settings: type[BaseSettings]) -> list[str]:
        """Arguments by which a child process gets these settings, from the file and from the command line."""
        return self._config_argument() + to_arguments(self.values(settings))

    def command_line(self) -> list[str]:
        """Arguments by which the same command gets all that this one got."""
        flags = [one for values in self._flags.values() for one in to_arguments(values)]
        sets = {
            f"--set={key}={str(value).lower() if isinstance(value, bool) else value}": None
            for values in self._sets.values()
            for key, value in values.items()
        }
        return [*self._config_argument(), *dict.fromkeys(flags), *sets]

    def _config_argument(self) -> list[str]:
        return [] if self._config is None else ["--config", str(self._config.resolve())]

    def _spelt(self, settings: type[BaseSettings], key: str) -> str:
        is_set = key in self._sets.get(settings, {}) and key not in self._flags.get(settings, {})
        return f"--set {key}" if is_set or "." in key else flag(key)


def to_arguments(values: Mapping[str, object]) -> list[str]:
    """Convert values by key to arguments: `--eta=0.1`, `--resume`, `--no-reflection`, `--set=limits.threads=4`."""
    arguments = []
    for name, value in values.items():
        if "." in name:
            arguments.append(f"--set={name}={value}")
        elif isinstance(value, bool):
            arguments.append(flag(name) if value else "--no-" + flag(name)[2:])
        else:
            arguments.append(f"{flag(name)}={value}")
    return arguments


def help_text(command: Callable[..., None]) -> str:
    """The docstring, one line per paragraph."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(one if one.startswith(" ") else " ".join(one.splitlines()) for one in paragraphs)


def flag(name: str) -> str:
    """`batch_size` -> `--batch-size`."""
    return "--" + name.replace("_", "-")


def with_options(
    *groups: OptionGroup, known: Sequence[type[BaseSettings]], common: Collection[str] = ()
) -> Callable[..., Callable[..., None]]:
    """Add options, `--config` and, if a setting is no option, `--set` to a command `f(given, ...)`.

    Args:
        groups: settings that become options of the command.
        known: settings classes whose fields are the keys of the file that `--config` names.
        common: names of the parameters that `--help` shows; the command then has `--help-all`, which shows every
            option. If empty, `--help` shows every option.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]
        made = [_parameter(group, *named) for group in groups for named in group.options().items()]
        more = [_SET] if any(group.settable() - group.options().keys() for group in groups) else []
        helps = [_HELP_ALL] if common else []
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *made, *more, _CONFIG, *helps)]

        @functools.wraps(command)
        def run(**arguments: Any) -> None:
            flags = {
                group.settings: {name: arguments[name] for name in group.options() if arguments[name] is not None}
                for group in groups
            }
            given = Given(flags, arguments["config"], known, _read_sets(arguments.get("set") or (), groups))
            command(given=given, **{p.name: arguments[p.name] for p in own})

        run.__dict__["__signature__"] = inspect.Signature(parameters)
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        run.__dict__["settable"] = {key for group in groups for key in group.settable() - group.options().keys()}
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
            help="TOML file with settings. Its keys are the names of the options with underscores, for example "
            "batch_size = 128. Environment variables take precedence over the file, --set over both, and options over "
            "all of them.",
        ),
    ],
)

_SET = inspect.Parameter(
    "set",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any setting, also one without an option of its own, by its key in the file of --config: --set "
            "limits.threads=4. docs/settings.md lists them all. May be repeated.",
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


def _from_environment(settings: type[BaseSettings], key: str) -> str:
    named = variable(settings, key)
    return named if _plain_type(fields(settings)[key].annotation) is SecretStr else f"{named}={os.environ[named]}"


def _refuse_unknown_variables(settings: type[BaseSettings]) -> None:
    """Raise CommandError for a variable of a table that has no such setting: GEMPS_LIMITS_THREAD."""
    known = {variable(settings, key): key for key in fields(settings)}
    for table in tables(settings):
        prefix = variable(settings, f"{table}.")
        for name in sorted({one for one in os.environ if one.startswith(prefix)} - known.keys()):
            key = f"{table}.{name.removeprefix(prefix).lower()}"
            near = difflib.get_close_matches(key, [one for one in known.values() if one.startswith(f"{table}.")], n=1)
            hint = f"did you mean {variable(settings, near[0])}?" if near else "docs/settings.md lists them all"
            raise CommandError(f"{name}: there is no such setting; {hint}", USAGE)


def _read_sets(texts: Sequence[str], groups: Sequence[OptionGroup]) -> dict[type[BaseSettings], dict[str, str | bool]]:
    """Give each KEY=VALUE to the classes that have the key. Raises CommandError."""
    found: dict[type[BaseSettings], dict[str, str | bool]] = {group.settings: {} for group in groups}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise CommandError(f"--set {text}: write KEY=VALUE, for example --set limits.threads=4", USAGE)
        owners = [group for group in groups if key in group.settable()]
        if not owners:
            raise CommandError(f"--set {text}: {_explain_key(key, groups)}", USAGE)
        for group in owners:
            found[group.settings][key] = _value(fields(group.settings)[key], value)
    return found


def _value(field: FieldInfo, text: str) -> str | bool:
    """A switch as a bool, so that a child process gets it as one; a text that is neither is refused on loading."""
    is_switch = _plain_type(field.annotation) is bool
    return {"true": True, "false": False}.get(text.lower(), text) if is_switch else text


def _explain_key(key: str, groups: Sequence[OptionGroup]) -> str:
    """Say why `--set` does not take the key."""
    gone.refuse_set(key)
    if any(key in group.without for group in groups):
        return f"this command sets {key} itself: leave it out"
    if key.startswith("rule."):
        return f"write --rule-settings {key.removeprefix('rule.')}=VALUE, or --set rule_settings=..., with all numbers"
    return _unknown(key, {known for group in groups for known in group.settable()})


def _read_toml(path: Path, settings: Sequence[type[BaseSettings]]) -> dict[str, Any]:
    """The file's values, by key. Raises CommandError."""
    try:
        values = tomllib.loads(read_text(path))
    except OSError as error:
        raise CommandError(f"--config {path}: {error.strerror}", USAGE) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CommandError(f"--config {path} is not TOML: {error}", USAGE) from None
    if isinstance(table := values.get("rule"), dict):
        if "rule_settings" in values and table.keys() - {"name"}:
            raise CommandError(
                f"--config {path}: rule_settings and the table [rule] both have the rule's numbers: write all in one",
                USAGE,
            )
        values = {name: value for name, value in values.items() if name != "rule"} | split_rule_table(table)
    of_tables = {name for one in settings for name in tables(one)}
    known = {key for one in settings for key in fields(one)}
    for one in settings:
        values = flat(one, values)
    for key in values:
        if key in of_tables:
            raise CommandError(f"--config {path}: {key} is a table: write [{key}], and its settings below it", USAGE)
        if key not in known:
            gone.refuse_key(key, path)
            raise CommandError(f"--config {path}: {_unknown(key, known)}", USAGE)
    return values


def _unknown(key: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "docs/settings.md lists the names of all settings"
    return f"there is no setting {key!r}; {hint}"


_FOLLOWS_FROM_ANOTHER = "default_factory_not_called"


def explain(error: ValidationError, origins: Mapping[str, str]) -> str:
    """Format pydantic's errors."""
    return "; ".join(_line(one, origins) for one in error.errors() if one["type"] != _FOLLOWS_FROM_ANOTHER)


def _line(error: ErrorDetails, origins: Mapping[str, str]) -> str:
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
    key = ".".join(map(str, error["loc"]))
    is_of_several = not key or (isinstance(error["input"], Mapping) and key not in origins)  # of a class, or of a table
    if is_of_several:
        named = {key for key in origins if flag(key) in re.findall(r"--[a-z0-9-]+", message) or key in message.split()}
        elsewhere = [origin for key, origin in origins.items() if key in named and not origin.startswith("--")]
        return message + (f" (here: {', '.join(elsewhere)})" if elsewhere else "")
    if error["type"] == "extra_forbidden":
        message = "there is no such setting; docs/settings.md lists them"
    return f"{origins.get(key, key if '.' in key else flag(key))}: {message}"
