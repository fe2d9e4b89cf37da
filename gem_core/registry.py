"""Names of update rules, without Numba.

Other packages add rules by entry points; built-in names take precedence:

    [project.entry-points."gemps.rules"]
    my-rule = "my_package.my_rule:MyRule"
"""

from collections.abc import Mapping
from importlib import metadata
from typing import Literal, get_args

from gem_core.errors import RuleError

__all__ = [
    "AUTO",
    "BUILT_IN",
    "DIRECTIONS",
    "ENTRY_POINTS",
    "Direction",
    "foreign_rules",
    "is_rule",
    "require_direction",
    "require_rule",
    "rule_names",
]

Direction = Literal["gradient", "rms", "auto"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
# Instead of a rule's name. The server then runs gem, and its first worker decides the rest (docs/rules.md).
AUTO = "auto"

BUILT_IN = {
    "gem": "gem_core.rules.gem:Gem",
    "downpour": "gem_core.rules.downpour:Downpour",
    "adaptive-staleness": "gem_core.rules.adaptive_staleness:AdaptiveStaleness",
    "dc-asgd": "gem_core.rules.dc_asgd:DcAsgd",
    "gap-aware": "gem_core.rules.gap_aware:GapAware",
    "ringmaster": "gem_core.rules.ringmaster:Ringmaster",
    "easgd": "gem_core.rules.easgd:Easgd",
    "dana": "gem_core.rules.dana:Dana",
    "agn": "gem_core.rules.agn:Agn",
    "delayed-nesterov": "gem_core.rules.delayed_nesterov:DelayedNesterov",
    "fedbuff": "gem_core.rules.fedbuff:FedBuff",
    "fadas": "gem_core.rules.fadas:Fadas",
    "ace": "gem_core.rules.ace:Ace",
    "ormo": "gem_core.rules.ormo:Ormo",
    "ringmaster-lmo": "gem_core.rules.ringmaster_lmo:RingmasterLmo",
}
# Rules whose formulas use delta / eta as a gradient.
GRADIENT_RULES = frozenset({"dc-asgd"})
ENTRY_POINTS = "gemps.rules"


def rule_names() -> tuple[str, ...]:
    """Built-in names, then others, sorted."""
    return (*BUILT_IN, *sorted(foreign_rules()))


def is_rule(name: str) -> bool:
    """Whether the rule exists. If it is not built in, this scans the entry points."""
    return name in BUILT_IN or name in foreign_rules()


def require_rule(name: str) -> str:
    """Return `name`, or raise RuleError."""
    if not is_rule(name):
        raise RuleError(f"there is no update rule {name!r}; choose one of: {', '.join(rule_names())}")
    return name


def require_decay(eta: float, settings: Mapping[str, float]) -> None:
    """Raise RuleError if a commit with `eta` would leave nothing of the parameters."""
    decay = settings.get("weight_decay", 0.0)
    if eta * decay >= 1:
        raise RuleError(
            f"weight_decay {decay:g} with eta {eta:g} leaves nothing of the parameters: make one of them smaller"
        )


def require_direction(name: str, direction: str) -> None:
    """Raise RuleError if the rule needs gradients and `direction` is another."""
    if direction != "gradient" and name in GRADIENT_RULES:
        raise RuleError(f"rule {name!r} needs gradients: choose direction gradient, or another rule")


def foreign_rules() -> dict[str, metadata.EntryPoint]:
    """Return the entry points of other packages' rules. Of several with one name, the first is used."""
    found: dict[str, metadata.EntryPoint] = {}
    for entry_point in metadata.entry_points(group=ENTRY_POINTS):
        if entry_point.name not in BUILT_IN:
            found.setdefault(entry_point.name, entry_point)
    return found
