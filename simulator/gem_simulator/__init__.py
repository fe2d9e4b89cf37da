"""Simulated workers.

Imports without torch; names load lazily.
"""

from typing import TYPE_CHECKING

from gem_core.lazy import lazy

if TYPE_CHECKING:
    from gem_simulator.cluster import Commit as Commit
    from gem_simulator.errors import SimulationError as SimulationError
    from gem_simulator.evaluation import Evaluation as Evaluation
    from gem_simulator.recorded import Recorded as Recorded
    from gem_simulator.recorded import read_recorded as read_recorded
    from gem_simulator.results import History as History
    from gem_simulator.results import SimulationResult as SimulationResult
    from gem_simulator.settings import SimulationSettings as SimulationSettings
    from gem_simulator.simulation import replay_recording as replay_recording
    from gem_simulator.simulation import simulate as simulate

__getattr__, __dir__, __all__ = lazy(__name__, extra="lab")
