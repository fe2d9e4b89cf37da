"""The registry of update rules. A new rule is one new file in this folder and its class in the list below."""

from __future__ import annotations

from gem_core.errors import RuleError
from gem_core.rules.adaptive_staleness import AdaptiveStaleness
from gem_core.rules.downpour import Downpour
from gem_core.rules.gem import Gem
from gem_core.rules.interface import Setting, Statistics, UpdateRule, WorkerState

__all__ = ["Setting", "Statistics", "UpdateRule", "WorkerState", "create_rule", "known_settings", "rule_names"]

_RULES: dict[str, type[UpdateRule]] = {rule.name: rule for rule in (Gem, Downpour, AdaptiveStaleness)}


def rule_names() -> tuple[str, ...]:
    """The names that `create_rule` knows."""
    return tuple(_RULES)


def known_settings(name: str) -> tuple[Setting, ...]:
    """What can be set for the rule `name`, with defaults and ranges.

    Raises:
        RuleError: there is no such rule.
    """
    return _rule(name).known_settings


def create_rule(name: str, **settings: float) -> UpdateRule:
    """The rule `name` with `settings`; those that are not given have their defaults.

    Nothing is compiled yet: `UpdateRule.warm_up` does that, or the first commit.

    Raises:
        RuleError: there is no such rule, it does not know a setting, or a value is out of range.
    """
    return _rule(name)(settings)


def _rule(name: str) -> type[UpdateRule]:
    try:
        return _RULES[name]
    except KeyError:
        raise RuleError(f"there is no update rule {name!r}; choose one of: {', '.join(_RULES)}") from None
