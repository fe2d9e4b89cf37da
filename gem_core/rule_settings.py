"""Rule settings, and their text form NAME=VALUE,NAME=VALUE."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = [
    "GEM_SETTINGS",
    "PRECONDITION_SETTINGS",
    "WEIGHT_DECAY",
    "Setting",
    "default_eta",
    "parse_settings",
    "settings_text",
]


class Setting(NamedTuple):
    """Setting with inclusive range; `whole`: integers only."""

    name: str
    default: float
    least: float
    most: float
    consequence: str
    whole: bool = False


WEIGHT_DECAY = Setting(
    "weight_decay", 0.0, 0.0, 10.0, "share of matrices and embeddings that decays a commit, in eta; as AdamW's"
)

# Also server flags.
GEM_SETTINGS = (
    Setting("momentum", 0.9, 0.0, 0.9999, "mu: how long a worker's moment remembers its deltas"),
    Setting("kappa", 1.0, 0.0, 1e6, "amplifies the proxy's energy; 2 is the paper's aggressive setting"),
    Setting("pi_min", 0.0, -1e6, 1e6, "least factor; below 0 runs of five workers and more diverge"),
    Setting("pi_max", 5.0, -1e6, 1e6, "largest factor; 1 learns clearly worse, more than 5 gains nothing"),
    Setting("epsilon", 1e-12, 1e-30, 1.0, "keeps the division defined where delta is 0"),
    WEIGHT_DECAY,
    Setting("local_steps", 1, 1, 1e6, "gradients in a commit, of which it has the mean", whole=True),
    Setting("local_rate", 0.3, 0.0, 100.0, "size of a worker's steps between commits, in eta; 0: none"),
)

PRECONDITION_SETTINGS = (
    Setting("beta2", 0.99, 0.0, 0.999999, "how long the mean square of the gradients remembers"),
    Setting("precondition_epsilon", 1e-8, 1e-30, 1.0, "added to the root of the mean square"),
    Setting("precondition_cap", 5.0, 1e-3, 1e6, "largest step of an element, in eta; for rarely used elements"),
)


def default_eta(settings: Mapping[str, Any]) -> float:
    """Smaller where eta is the size of a step."""
    usual = {"precondition": "none", "direction": "gradient"}
    return 0.05 if all(settings.get(name, value) == value for name, value in usual.items()) else 0.001


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
