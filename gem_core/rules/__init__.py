"""Update rules by name. The modules' formulas are elementwise, in float32."""

from __future__ import annotations

import importlib

from gem_core.errors import RuleError
from gem_core.registry import (
    BUILT_IN,
    ENTRY_POINTS,
    foreign_rules,
    require_rule,
    rule_names,
)
from gem_core.rules.interface import RuleState, Setting, Statistics, UpdateRule, WorkerStep

__all__ = [
    "RuleState",
    "Setting",
    "Statistics",
    "UpdateRule",
    "WorkerStep",
    "create_rule",
    "known_settings",
    "rule_names",
]


def known_settings(name: str) -> tuple[Setting, ...]:
    """The rule's settings. Raises RuleError if it cannot be loaded."""
    return _rule(name).known_settings


def create_rule(name: str, /, **settings: float) -> UpdateRule:
    """Create a rule for one run; settings default to those of `known_settings`.

    Raises RuleError for an unknown or unloadable rule, or an illegal setting.
    """
    return _rule(name)(settings)


def _rule(name: str) -> type[UpdateRule]:
    require_rule(name)
    path = BUILT_IN.get(name)
    if path is not None:
        module, _, class_name = path.partition(":")
        built_in: type[UpdateRule] = getattr(importlib.import_module(module), class_name)
        return built_in
    entry_point = foreign_rules()[name]
    origin = f"{entry_point.dist.name} {entry_point.dist.version}" if entry_point.dist is not None else "a package"
    try:
        rule = entry_point.load()
    except Exception as error:
        raise RuleError(
            f"the update rule {name!r} of {origin} cannot be loaded from {entry_point.value!r}: "
            f"{type(error).__name__}: {error}; mend or remove that package, or choose another rule"
        ) from error
    if not (isinstance(rule, type) and issubclass(rule, UpdateRule)) or getattr(rule, "name", None) != name:
        raise RuleError(
            f"the update rule {name!r} of {origin} is not one: {entry_point.value!r} in its entry points "
            f"{ENTRY_POINTS!r} must be a subclass of gem_core.UpdateRule whose `name` is {name!r}"
        )
    return rule
