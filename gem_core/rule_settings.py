"""Rule settings, and their text form NAME=VALUE,NAME=VALUE."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from gem_core.errors import RuleError

__all__ = [
    "GEM_SETTINGS",
    "LOCAL_STEPS",
    "WEIGHT_DECAY",
    "WHOLE_STEPS",
    "Setting",
    "check_settings",
    "default_eta",
    "parse_settings",
    "settings_text",
    "split_rule_table",
    "usual_settings",
]


class Setting(NamedTuple):
    """A setting and its range, which includes both ends. `whole` allows only integers."""

    name: str
    default: float
    least: float
    most: float
    consequence: str
    whole: bool = False


WEIGHT_DECAY = Setting(
    "weight_decay", 0.0, 0.0, 10.0, "share of matrices and embeddings that decays a commit, in eta; as AdamW's"
)

LOCAL_STEPS = Setting("local_steps", 1, 1, 1e6, "gradients in a commit, of which it has the mean", whole=True)

SIGNED_GAP = Setting(
    "signed_gap",
    0,
    0,
    1,
    "1: others' movement counts only where it goes in the delta's direction; 0: wherever it goes",
    whole=True,
)

GEM_SETTINGS = (
    Setting("momentum", 0.9, 0.0, 0.9999, "mu: how long a worker's moment remembers its deltas"),
    Setting("kappa", 1.0, 0.0, 1e6, "amplifies the proxy's energy; 2 is the paper's aggressive setting"),
    Setting("pi_min", 0.0, -1e6, 1e6, "least factor; below 0 runs of five workers and more diverge"),
    Setting("pi_max", 5.0, -1e6, 1e6, "largest factor; 1 learns clearly worse, more than 5 gains nothing"),
    Setting("epsilon", 1e-12, 1e-30, 1.0, "keeps the division defined where delta is 0"),
    WEIGHT_DECAY,
    LOCAL_STEPS,
    Setting("local_rate", 0.3, 0.0, 100.0, "size of a worker's steps between commits, in eta; 0: none"),
    SIGNED_GAP,
)

# Settings of gem for deltas that are whole steps, which include their momentum. With momentum 0 and kappa 2 the budget
# is twice the delta, so one worker's deltas are applied exactly as they are, and with pi_max = 1 those of several
# workers except for what others have already moved. epsilon is the smallest legal value, because deltas below it are
# shortened.
WHOLE_STEPS: Mapping[str, float] = MappingProxyType(
    {"momentum": 0.0, "kappa": 2.0, "pi_max": 1.0, "signed_gap": 1.0, "epsilon": 1e-30}
)


def default_eta(settings: Mapping[str, Any]) -> float:
    """Return the default learning rate, which is smaller where eta is the size of a step.

    Under rule `auto` without a direction it is the one of direction `auto`, and a worker's Join may change it.
    """
    direction = settings.get("direction", "gradient")
    if direction == "auto" or (direction == "gradient" and settings.get("rule") == "auto"):
        return 0.002
    return 0.05 if direction == "gradient" else 0.001


def usual_settings(rule: str, direction: str) -> Mapping[str, float]:
    """Return the settings of a rule that follow from the direction, and replace its defaults.

    With direction `auto` the worker applies the momentum, before the direction, so `gem` treats deltas as whole steps.
    """
    return WHOLE_STEPS if rule == "gem" and direction == "auto" else MappingProxyType({})


def check_settings(rule: str, known: Sequence[Setting], given: Mapping[str, Any]) -> dict[str, float]:
    """Return a value for each of the rule's `known` settings: that of `given`, or its default.

    Raises RuleError for a name that is not known, and for a value that is no number or out of range.
    """
    values = {one.name: float(one.default) for one in known}
    for name, value in given.items():
        if name not in values:
            listed = ", ".join(values) or "none"
            raise RuleError(f"rule {rule!r} has no setting {name!r}; its settings are: {listed}")
        values[name] = _number(rule, name, value)
    for one in known:
        value = values[one.name]
        if not one.least <= value <= one.most:
            raise RuleError(
                f"rule {rule!r}: {one.name} = {value:g} is out of range; choose {one.least:g} to {one.most:g}"
            )
        if one.whole and not value.is_integer():
            raise RuleError(f"rule {rule!r}: {one.name} = {value:g} must be a whole number")
    return values


def split_rule_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the table [rule] of a TOML file to the settings `rule` and `rule_settings`, if it has them."""
    own = {name: value for name, value in table.items() if name != "name"}
    found = {"rule": table["name"]} if "name" in table else {}
    return found | ({"rule_settings": own} if own else {})


def settings_text(value: object) -> object:
    """Convert a dict to text, check text, pass other values through. Raises ValueError."""
    text = ",".join(f"{name}={one}" for name, one in value.items()) if isinstance(value, dict) else value
    if isinstance(text, str):
        parse_settings(text)
    return text


def parse_settings(text: str) -> dict[str, float]:
    """Parse "alpha=0.1, period=5"; names and ranges are not checked. Raises ValueError."""
    found: dict[str, float] = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        name, equals, value = (part.strip() for part in pair.partition("="))
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not equals or not name or not math.isfinite(number):
            raise ValueError(f"{pair!r} is not NAME=VALUE with a number; write for example alpha=0.1,period=5")
        if name in found:
            raise ValueError(f"{name} is given twice: leave one of them out")
        found[name] = number
    return found


def _number(rule: str, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RuleError(f"rule {rule!r}: {name} = {value!r} is not a finite number")
    return float(value)
