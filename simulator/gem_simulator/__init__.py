"""Many workers and their server in one process, on a virtual clock; see DESIGN.md.

    from gem_simulator import SimulationSettings, simulate

    result = simulate(SimulationSettings(workers=100, steps=150, compute_time="lognormal:1,0.5"))
    print(result.final.training_loss, result.history.column("staleness").mean())

Imports without torch; names load lazily.
"""

from typing import TYPE_CHECKING

from gem_core.lazy import lazy

if TYPE_CHECKING:
    from gem_simulator.cluster import Commit
    from gem_simulator.errors import SimulationError
    from gem_simulator.evaluation import Evaluation
    from gem_simulator.recorded import Recorded, read_recorded
    from gem_simulator.results import History, SimulationResult
    from gem_simulator.settings import SimulationSettings
    from gem_simulator.simulation import follow, simulate

_HOMES = {
    "Commit": "cluster",
    "Evaluation": "evaluation",
    "History": "results",
    "Recorded": "recorded",
    "SimulationError": "errors",
    "SimulationResult": "results",
    "SimulationSettings": "settings",
    "follow": "simulation",
    "read_recorded": "recorded",
    "simulate": "simulation",
}

__all__ = [
    "Commit",
    "Evaluation",
    "History",
    "Recorded",
    "SimulationError",
    "SimulationResult",
    "SimulationSettings",
    "follow",
    "read_recorded",
    "simulate",
]

__getattr__, __dir__ = lazy(__name__, _HOMES)
