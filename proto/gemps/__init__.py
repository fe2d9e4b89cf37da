"""gemps: `ParameterServer` for PyTorch scripts, `simulate` for studies without a cluster.

Names load lazily, and need an extra: `worker`, or `lab` for the simulator. `gemps.v1` is the generated wire contract.
"""

from typing import TYPE_CHECKING

from gem_core.lazy import lazy

if TYPE_CHECKING:
    from gem_server import __version__ as __version__
    from gem_simulator import SimulationSettings as SimulationSettings
    from gem_simulator import simulate as simulate
    from gem_worker import ParameterServer as ParameterServer

__getattr__, __dir__, __all__ = lazy(__name__)
