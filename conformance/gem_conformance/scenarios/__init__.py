"""All scenarios, in listing order."""

from gem_conformance.scenarios import commits, formats, losses, refusals, run_end, shards, start
from gem_conformance.scenarios.scenario import Scenario

__all__ = ["SCENARIOS", "Scenario"]

SCENARIOS: dict[str, Scenario] = {
    one.name: one
    for module in (start, commits, losses, refusals, run_end, formats, shards)
    for one in module.SCENARIOS
}  # fmt: skip
