"""Many workers and their server in one process, on a virtual clock.

What is learnt is computed by gem_core's rules and gem_worker's models, tasks and conversions, as they are; only time is
simulated. `DESIGN.md` beside this file says what is modelled.
"""

from gem_simulator.cluster import Commit
from gem_simulator.errors import SimulationError
from gem_simulator.recorded import Recorded, read_recorded
from gem_simulator.results import Evaluation, History, SimulationResult
from gem_simulator.settings import SimulationSettings
from gem_simulator.simulation import follow, simulate

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
