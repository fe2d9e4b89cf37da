"""A process of a parameter server on torch rpc: `python -m benchmarks.time_to_loss.rpc_process NAME`.

As in PyTorch's tutorial on batch RPC processing, the server waits for the gradients of all workers, steps its optimizer
with their mean, and answers all with the parameters. A group of torch rpc cannot replace a process.
"""

import itertools
import sys
import threading
from typing import Any

import torch
import torch.distributed.rpc as rpc
from torch import Tensor, nn

from benchmarks.time_to_loss.worker_context import WorkerContext
from benchmarks.time_to_loss.workload import adamw
from benchmarks.time_to_loss.worlds import WORKERS

SERVER = "server"


class Server:
    """The model and its optimizer; `current` is this process's."""

    current: "Server"

    def __init__(self, model: nn.Module, rate: float) -> None:
        self._parameters = list(model.parameters())
        self._optimizer = adamw(model, rate)
        self._lock = threading.Lock()
        self._gradients: list[list[Tensor]] = []
        self._answer: torch.futures.Future[list[Tensor]] = torch.futures.Future()

    def add(self, gradients: list[Tensor]) -> "torch.futures.Future[list[Tensor]]":
        """The parameters after the step with all workers' gradients."""
        with self._lock:
            answer = self._answer
            self._gradients.append(gradients)
            if len(self._gradients) == WORKERS:
                for parameter, *found in zip(self._parameters, *self._gradients, strict=True):
                    parameter.grad = torch.stack(found).mean(0)
                self._optimizer.step()
                self._gradients.clear()
                self._answer = torch.futures.Future()
                answer.set_result([one.detach() for one in self._parameters])
        return answer


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def exchange(gradients: list[Tensor]) -> "torch.futures.Future[list[Tensor]]":
    """On the server."""
    return Server.current.add(gradients)


def main() -> None:
    """Train until killed."""
    name = sys.argv[1]
    context = WorkerContext.from_environment()
    model = context.model()
    if name == SERVER:
        Server.current = Server(model, context.rate)
    # Not the shared memory that TensorPipe would find between the hosts of one machine.
    tcp: dict[str, Any] = {"_transports": ["uv"], "_channels": ["basic"]}
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://{context.server}", rpc_timeout=3600, **tcp)
    rpc.init_rpc(name, rank=context.rank + 1, world_size=WORKERS + 1, rpc_backend_options=options)  # type: ignore[no-untyped-call]
    if name == SERVER:
        threading.Event().wait()
    parameters = list(model.parameters())
    batches = context.begin()
    for step in itertools.count(1):
        model.zero_grad()
        context.gradient(model, batches)
        found = rpc.rpc_sync(SERVER, exchange, args=([one.grad for one in parameters],))
        with torch.no_grad():
            for parameter, value in zip(parameters, found, strict=True):
                parameter.copy_(value)
        context.show(model, step)


if __name__ == "__main__":
    main()
