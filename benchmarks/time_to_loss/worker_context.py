"""What a contender's worker process has from `contest.py`, by environment variables, and its signs of life."""

import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BufferedWriter
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from benchmarks.time_to_loss.workload import WORKLOADS, Batch, Workload, compute_gradient

GO, READY, SNAPSHOTS = "go", "ready", "snapshots"


@dataclass
class WorkerContext:
    """Of worker `rank`; `folder`: the run's, shared by all hosts; `pause`: seconds of waiting in a step."""

    rank: int
    server: str
    rate: float
    seed: int
    folder: Path
    workload: Workload
    pause: float = 0.0
    _next: float = 0.0
    _lock: BufferedWriter | None = field(default=None, repr=False)

    @classmethod
    def from_environment(cls) -> "WorkerContext":
        """Read it; limit PyTorch to one thread."""
        torch.set_num_threads(1)
        get = os.environ.__getitem__
        return cls(
            int(os.environ.get("RANK", os.environ.get("TTL_RANK", "0"))),
            get("TTL_SERVER"),
            float(get("TTL_RATE")),
            int(get("TTL_SEED")),
            Path(get("TTL_FOLDER")),
            WORKLOADS[get("TTL_WORKLOAD")],
            float(os.environ.get("TTL_PAUSE", "0")),
        )

    def model(self) -> nn.Module:
        """The initial model."""
        return self.workload.model(self.seed)

    def begin(self) -> Iterator[Batch]:
        """Wait until all workers are ready; return batches, which differ after a restart."""
        go = self.folder / GO
        seed = [self.seed, self.rank]
        if go.exists():
            seed.append(time.monotonic_ns())
        else:
            (self.folder / READY / str(self.rank)).touch()
            while not go.exists():
                time.sleep(0.01)
        return self.workload.batches(seed)

    def gradient(self, model: nn.Module, batches: Iterator[Batch]) -> Tensor:
        """Leave a batch's gradient in the parameters; return the loss."""
        time.sleep(self.pause)
        return compute_gradient(model, next(batches))

    def show(self, model: nn.Module, step: int) -> None:
        """Keep parameters for the next evaluation; one worker at a time does so, until it ends."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self.workload.evaluation_seconds
        if self._lock is None:
            lock = (self.folder / "lock").open("wb")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                return
            self._lock = lock
        values = parameters_to_vector(model.parameters()).detach().numpy()
        path = self.folder / SNAPSHOTS / f"{now:.3f}-{step}.npy"
        with (partial := path.with_suffix(".part")).open("wb") as file:
            np.save(file, values)
        partial.rename(path)
