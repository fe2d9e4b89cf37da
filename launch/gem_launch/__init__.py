"""Runs from Python: `serve`, `launch`, `load`."""

from typing import TYPE_CHECKING

from gem_core.lazy import lazy

if TYPE_CHECKING:
    from gem_launch.run_files import LoadedRun as LoadedRun
    from gem_launch.run_files import RunFilesError as RunFilesError
    from gem_launch.run_files import load as load
    from gem_launch.server_process import RunningServer as RunningServer
    from gem_launch.server_process import ServerProcessError as ServerProcessError
    from gem_launch.server_process import serve as serve
    from gem_launch.workers import LaunchError as LaunchError
    from gem_launch.workers import launch as launch

__getattr__, __dir__, __all__ = lazy(__name__, extra="worker")
