"""W&B sink, configured by WANDB_ variables."""

import os
from collections.abc import Mapping
from typing import Any

import wandb
from typing_extensions import override

from gem_cli.sinks.interface import RunInfo, Scalars, Sink

PROJECT = "gemps"
_COMPARED = ("accuracy", "test_loss", "training_loss", "commits", "commits_per_second", "staleness_mean", "jain_index")


class WandbSink(Sink):
    """W&B run; its step must not decrease."""

    def __init__(self, run: RunInfo) -> None:
        self._step = 0
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            dir=str(run.folder),
            config=dict(run.settings),
        )

    @override
    def write(self, clock: int, seconds: float, scalars: Scalars) -> None:
        self._step = max(self._step, clock)
        self._run.log({**scalars, "seconds": seconds}, step=self._step)

    def close(self, summary: Mapping[str, Any]) -> None:
        """Update W&B's summary and finish."""
        self._run.summary.update({name: summary[name] for name in _COMPARED if summary.get(name) is not None})
        self._run.finish(exit_code=0)
