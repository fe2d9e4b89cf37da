"""Which update rules there are: those of gemps, and those that other packages bring. Needs no Numba.

A rule of gemps is one file in `rules/` and a line in `BUILT_IN`. Another package brings one by an entry point of the
group `gemps.rules`, whose name is the rule's and whose object is its class:

    [project.entry-points."gemps.rules"]
    my-rule = "my_package.my_rule:MyRule"

A name of gemps stands for the rule of gemps, whatever others say. No module of a rule is imported here.
"""

from importlib import metadata

from gem_core.errors import RuleError

__all__ = ["BUILT_IN", "ENTRY_POINTS", "foreign_rules", "is_rule", "require_rule", "rule_names"]

# Name -> module and class.
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
}
ENTRY_POINTS = "gemps.rules"


def rule_names() -> tuple[str, ...]:
    """The names that `create_rule` knows: of gemps in the order of the list, then of other packages by name."""
    return (*BUILT_IN, *sorted(foreign_rules()))


def is_rule(name: str) -> bool:
    """Whether `create_rule` knows this name; other packages are looked at only where gemps does not."""
    return name in BUILT_IN or name in foreign_rules()


def require_rule(name: str) -> str:
    """`name`, if it is a rule's.

    Raises:
        RuleError: there is no such rule.
    """
    if not is_rule(name):
        raise RuleError(f"there is no update rule {name!r}; choose one of: {', '.join(rule_names())}")
    return name


def foreign_rules() -> dict[str, metadata.EntryPoint]:
    """What other packages bring, by name. Of two with one name the first that is found counts."""
    found: dict[str, metadata.EntryPoint] = {}
    for entry_point in metadata.entry_points(group=ENTRY_POINTS):
        if entry_point.name not in BUILT_IN:
            found.setdefault(entry_point.name, entry_point)
    return found
