"""The scenarios, in the order in which they are listed. Each is a function: a sequence of steps on a `Play`."""

from gem_conformance.scenarios import committing, ending, formats, losing, refusing, starting
from gem_conformance.scenarios.scenario import Scenario

__all__ = ["SCENARIOS", "Scenario"]

SCENARIOS: dict[str, Scenario] = {
    one.name: one
    for module in (starting, committing, losing, refusing, ending, formats)
    for one in module.SCENARIOS
}  # fmt: skip
