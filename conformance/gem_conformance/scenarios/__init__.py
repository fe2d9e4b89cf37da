"""All scenarios, in listing order."""

from gem_conformance.scenarios import committing, ending, formats, losing, refusing, starting
from gem_conformance.scenarios.scenario import Scenario

__all__ = ["SCENARIOS", "Scenario"]

SCENARIOS: dict[str, Scenario] = {
    one.name: one
    for module in (starting, committing, losing, refusing, ending, formats)
    for one in module.SCENARIOS
}  # fmt: skip
