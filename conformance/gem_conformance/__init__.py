"""The conformance kit, which plays scenarios against a worker in any language and names the rules that it breaks."""

from gem_conformance.faults import FaultError, FaultName, Place
from gem_conformance.limits import Limits
from gem_conformance.runner import Outcome, play_by_hand, play_scenarios
from gem_conformance.scenarios import SCENARIOS, Scenario

__all__ = [
    "SCENARIOS",
    "FaultError",
    "FaultName",
    "Limits",
    "Outcome",
    "Place",
    "Scenario",
    "play_by_hand",
    "play_scenarios",
]
