"""Keys of settings: the name of a field, or, of a field in a table, both names with a dot: `limits.threads`.

A settings class may have fields that are themselves models; in a TOML file these are tables. Everything that names a
setting by text (`--set`, the file, error messages, arguments of child processes) names it by its key, and keeps values
in flat mappings by key. `nested` turns such a mapping into what the class takes.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings


def tables(settings: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """The models of those fields that are tables, by the field's name."""
    found = {name: field.annotation for name, field in settings.model_fields.items()}
    return {name: kind for name, kind in found.items() if isinstance(kind, type) and issubclass(kind, BaseModel)}


def fields(settings: type[BaseModel]) -> dict[str, FieldInfo]:
    """Every setting of a class by its key, in the order of the class."""
    of_tables = tables(settings)
    found: dict[str, FieldInfo] = {}
    for name, field in settings.model_fields.items():
        if name in of_tables:
            found |= {f"{name}.{inner}": one for inner, one in of_tables[name].model_fields.items()}
        else:
            found[name] = field
    return found


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert values by key to arguments of a settings class: {"limits.threads": 4} to {"limits": {"threads": 4}}."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        table, dot, name = key.partition(".")
        if dot:
            found.setdefault(table, {})[name] = value
        else:
            found[key] = value
    return found


def flat(settings: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """The opposite of `nested`. What is no mapping where `settings` has a table stays as it is."""
    return dict(_flat(tables(settings), values))


def explicit(settings: BaseSettings) -> dict[str, Any]:
    """What was given of these settings, from wherever, by key; None is left out."""
    found: dict[str, Any] = {}
    for name in settings.model_fields_set:
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            found |= {f"{name}.{inner}": getattr(value, inner) for inner in value.model_fields_set}
        else:
            found[name] = value
    return {key: value for key, value in found.items() if value is not None}


def variable(settings: type[BaseSettings], key: str) -> str:
    """The environment variable: `limits.chunk_bytes` is `GEMPS_LIMITS_CHUNK_BYTES`."""
    return f"{settings.model_config.get('env_prefix', '')}{key}".replace(".", "_").upper()


def _flat(of_tables: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if name in of_tables and isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", one) for inner, one in value.items())
        else:
            yield name, value
