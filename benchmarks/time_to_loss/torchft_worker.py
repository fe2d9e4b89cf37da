"""A worker of torchft: `python -m benchmarks.time_to_loss.torchft_worker HOST LIGHTHOUSE LEAST`.

A replica group of one process. A worker that returns gets the state of another one. Gradients go through the manager in
one tensor: torchft 0.2.0's `DistributedDataParallel` raises where the manager survives a failed exchange.
"""

import sys
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torchft import Manager, Optimizer, ProcessGroupGloo

from benchmarks.time_to_loss.worker_context import WorkerContext
from benchmarks.time_to_loss.workload import adamw


def main() -> None:
    """Train until killed."""
    host, lighthouse, least = sys.argv[1:]
    context = WorkerContext.from_environment()
    model = context.model()
    inner = adamw(model, context.rate)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=int(least),
        rank=0,
        world_size=1,
        store_addr=host,
        store_port=store.port,
        hostname=host,
        lighthouse_addr=lighthouse,
        replica_id=f"worker-{context.rank}",
    )
    optimizer = Optimizer(manager, inner)
    parameters = list(model.parameters())
    batches = context.begin()
    while True:
        optimizer.zero_grad()
        context.gradient(model, batches)
        gradients = [one.grad for one in parameters if one.grad is not None]
        mean = parameters_to_vector(gradients)
        manager.allreduce(mean).wait()
        vector_to_parameters(mean, gradients)
        optimizer.step()
        context.show(model, manager.current_step())


if __name__ == "__main__":
    main()
