"""Settings that `--config` files may contain."""

from gem_server.settings import ServerSettings
from gem_simulator.settings import SimulationSettings
from gem_worker.evaluator_settings import EvaluatorSettings
from gem_worker.settings import WorkerSettings

from gem_cli.training.settings import TrainSettings

KNOWN = (ServerSettings, WorkerSettings, EvaluatorSettings, TrainSettings, SimulationSettings)
