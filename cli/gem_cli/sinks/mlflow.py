"""MLflow sink, configured by MLFLOW_ variables."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient
from typing_extensions import override

from gem_cli.sinks.interface import RunInfo, Scalars, Sink

EXPERIMENT = "gemps"
_COMPARED = ("accuracy", "test_loss", "training_loss", "commits_per_second", "staleness_mean", "jain_index")
# Server limits.
MAX_VALUE = 500
BATCH = 100


class MlflowSink(Sink):
    """A run with clock as step."""

    def __init__(self, run: RunInfo) -> None:
        self._client = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known is not None else self._client.create_experiment(name)
        self._id = self._client.create_run(experiment, run_name=run.name).info.run_id
        params = [Param(key, str(value)[:MAX_VALUE]) for key, value in _flat(run.settings)]
        for first in range(0, len(params), BATCH):
            self._client.log_batch(self._id, params=params[first : first + BATCH])

    @override
    def write(self, clock: int, seconds: float, scalars: Scalars) -> None:
        metrics = [Metric(name, value, int(1000 * seconds), clock) for name, value in scalars.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self, summary: Mapping[str, Any]) -> None:
        """Log final results and end."""
        for name in _COMPARED:
            if summary.get(name) is not None:
                self._client.log_metric(self._id, f"final/{name}", float(summary[name]))
        self._client.set_terminated(self._id, "KILLED" if summary.get("interrupted") else "FINISHED")


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        elif value is not None:
            yield f"{before}{name}", value
