"""All scenarios by name, in the order in which lists show them and the kit plays them."""

from gem_conformance.scenarios import commits, ends, features, formats, losses, refusals, shards, start
from gem_conformance.scenarios.scenario import Scenario

__all__ = ["SCENARIOS", "Scenario"]

SCENARIOS: dict[str, Scenario] = {
    one.name: one
    for module in (start, commits, losses, refusals, ends, formats, features, shards)
    for one in module.SCENARIOS
}  # fmt: skip
