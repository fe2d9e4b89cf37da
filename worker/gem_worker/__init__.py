"""Worker library: trains a PyTorch model through a gemps server.

Names load lazily: importing the package must import neither torch nor gRPC.
"""

from typing import TYPE_CHECKING

from gem_core.lazy import lazy

if TYPE_CHECKING:
    from gem_worker.client import (
        Client,
        ClientError,
        ClientSettings,
        Membership,
        Observer,
        RunFinished,
        ServerRefused,
        ServerUnavailable,
    )
    from gem_worker.devices import device_for
    from gem_worker.errors import Diverged, TaskError, UnsupportedModel
    from gem_worker.evaluate import EvaluationResult, evaluate_checkpoint, evaluate_server
    from gem_worker.evaluator import Followed, follow_server
    from gem_worker.evaluator_settings import EvaluatorSettings
    from gem_worker.flat_model import FlatModel
    from gem_worker.parameter_server import ParameterServer, StepReport
    from gem_worker.settings import WorkerSettings
    from gem_worker.trainer import work

_HOMES = {
    "Client": "client",
    "ClientError": "client",
    "ClientSettings": "client",
    "Diverged": "errors",
    "EvaluationResult": "evaluate",
    "EvaluatorSettings": "evaluator_settings",
    "FlatModel": "flat_model",
    "Followed": "evaluator",
    "Membership": "client",
    "Observer": "client",
    "ParameterServer": "parameter_server",
    "RunFinished": "client",
    "ServerRefused": "client",
    "ServerUnavailable": "client",
    "StepReport": "parameter_server",
    "TaskError": "errors",
    "UnsupportedModel": "errors",
    "WorkerSettings": "settings",
    "device_for": "devices",
    "evaluate_checkpoint": "evaluate",
    "evaluate_server": "evaluate",
    "follow_server": "evaluator",
    "work": "trainer",
}

__all__ = [
    "Client",
    "ClientError",
    "ClientSettings",
    "Diverged",
    "EvaluationResult",
    "EvaluatorSettings",
    "FlatModel",
    "Followed",
    "Membership",
    "Observer",
    "ParameterServer",
    "RunFinished",
    "ServerRefused",
    "ServerUnavailable",
    "StepReport",
    "TaskError",
    "UnsupportedModel",
    "WorkerSettings",
    "device_for",
    "evaluate_checkpoint",
    "evaluate_server",
    "follow_server",
    "work",
]

__getattr__, __dir__ = lazy(__name__, _HOMES)
