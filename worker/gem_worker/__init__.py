"""Worker library: trains a PyTorch model through a gemps server.

Names load lazily, without torch and gRPC.
"""

from typing import TYPE_CHECKING

from gem_core.lazy import lazy

if TYPE_CHECKING:
    from gem_worker.client import Client as Client
    from gem_worker.client import ClientError as ClientError
    from gem_worker.client import ClientSettings as ClientSettings
    from gem_worker.client import FinishedBeforeError as FinishedBeforeError
    from gem_worker.client import Membership as Membership
    from gem_worker.client import Observer as Observer
    from gem_worker.client import RunFinishedError as RunFinishedError
    from gem_worker.client import ServerRefusedError as ServerRefusedError
    from gem_worker.client import ServerUnavailableError as ServerUnavailableError
    from gem_worker.devices import device_for as device_for
    from gem_worker.errors import DivergedError as DivergedError
    from gem_worker.errors import TaskError as TaskError
    from gem_worker.errors import UnsupportedModelError as UnsupportedModelError
    from gem_worker.errors import UnsupportedOptimizerError as UnsupportedOptimizerError
    from gem_worker.evaluate import EvaluationResult as EvaluationResult
    from gem_worker.evaluate import evaluate_checkpoint as evaluate_checkpoint
    from gem_worker.evaluate import evaluate_server as evaluate_server
    from gem_worker.evaluate import export_adapter as export_adapter
    from gem_worker.evaluator import Followed as Followed
    from gem_worker.evaluator import evaluate_run as evaluate_run
    from gem_worker.evaluator_settings import EvaluatorSettings as EvaluatorSettings
    from gem_worker.flat_model import FlatModel as FlatModel
    from gem_worker.parameter_server import ParameterServer as ParameterServer
    from gem_worker.parameter_server import StepReport as StepReport
    from gem_worker.settings import WorkerSettings as WorkerSettings
    from gem_worker.trainer import work as work

__getattr__, __dir__, __all__ = lazy(__name__, extra="worker")
