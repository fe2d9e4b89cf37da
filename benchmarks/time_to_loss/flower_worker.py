"""A client of Flower: `python -m benchmarks.time_to_loss.flower_worker STEPS`: local steps of AdamW in each round."""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from flwr.client import NumPyClient, start_client
from numpy.typing import NDArray

from benchmarks.time_to_loss.worker_context import WorkerContext
from benchmarks.time_to_loss.workload import Batch, adamw


class Client(NumPyClient):  # type: ignore[misc]
    """Trains with its own optimizer, whose moments it keeps between rounds."""

    def __init__(self, context: WorkerContext, steps: int) -> None:
        self._context = context
        self._batches: Iterator[Batch] | None = None  # until the server sends the first round
        self._steps = steps
        self._model = context.model()
        self._optimizer = adamw(self._model, context.rate)
        self._round = 0

    def fit(
        self, parameters: list[NDArray[np.float32]], config: dict[str, Any]
    ) -> tuple[list[NDArray[np.float32]], int, dict[str, Any]]:
        """A round."""
        self._batches = self._batches or self._context.begin()
        with torch.no_grad():
            for own, value in zip(self._model.parameters(), parameters, strict=True):
                own.copy_(torch.from_numpy(value))
        self._context.show(self._model, self._round * self._steps)
        self._round += 1
        for _ in range(self._steps):
            self._optimizer.zero_grad()
            self._context.gradient(self._model, self._batches)
            self._optimizer.step()
        found = [one.detach().numpy() for one in self._model.parameters()]
        return found, self._steps * self._context.workload.batch, {}


def main() -> None:
    """Train until killed."""
    context = WorkerContext.from_environment()
    client = Client(context, int(sys.argv[1]))
    start_client(server_address=context.server, client=client.to_client(), insecure=True)


if __name__ == "__main__":
    main()
