"""gemps: `ParameterServer` for PyTorch scripts; `serve`, `launch`, `load`; `simulate`.

Names load lazily. Each needs an extra: `worker`, `server` or `lab`. `gemps.v1` is the generated wire
contract.
"""

from typing import TYPE_CHECKING

from gem_core.lazy import lazy

if TYPE_CHECKING:
    from gem_launch import LaunchError as LaunchError
    from gem_launch import ServerProcessError as ServerProcessError
    from gem_launch import launch as launch
    from gem_launch import load as load
    from gem_launch import serve as serve
    from gem_server import __version__ as __version__
    from gem_simulator import SimulationSettings as SimulationSettings
    from gem_simulator import simulate as simulate
    from gem_worker import ParameterServer as ParameterServer
    from gem_worker import RunFinishedError as RunFinishedError

__getattr__, __dir__, __all__ = lazy(__name__)
