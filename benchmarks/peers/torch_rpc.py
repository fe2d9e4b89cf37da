"""A parameter server on torch.distributed.rpc, after PyTorch's tutorials: gradients go to a function on the server.

It adds them, times -eta, and returns theta itself, as in the tutorials, with no copy in between: that may change while
it is being sent, so a worker may get a mixture of two versions. A copy under the lock would prevent that, and cost the
server time.
"""

import os
import socket
import threading
from typing import TYPE_CHECKING

from benchmarks.peers.interface import ETA, LARGEST_KEPT, SERVER_PROCESS, WORKER_PROCESS, Case, Contender, Desk

if TYPE_CHECKING:
    from torch import Tensor

TIMEOUT_SECONDS = 600
THREADS = 16  # of the agent: the default


class TorchRpc(Contender):
    """Tensors over TensorPipe."""

    def __init__(self, name: str, title: str, transports: list[str] | None, channels: list[str] | None) -> None:
        self.name = name
        self.title = title
        self.does = "a plain add under a lock; theta is sent while others may add to it"
        self._transports = transports
        self._channels = channels

    def server_memory(self, case: Case) -> int:
        """Theta, what arrives from each worker, and what its threads keep of freed buffers (found: 4 each)."""
        kept = 4 * THREADS * min(case.vector, LARGEST_KEPT)
        return SERVER_PROCESS + (2 + case.workers) * case.vector + kept

    def worker_memory(self, case: Case) -> int:
        """The model, and what arrives."""
        return WORKER_PROCESS + 4 * case.vector

    def serve(self, case: Case, desk: Desk) -> None:
        """Rank 0 of the group; leaves when all have."""
        import torch
        import torch.distributed.rpc as rpc

        torch.set_num_threads(1)
        _Server.theta = torch.zeros(case.parameters)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        desk.ready(address)
        self._join("server", 0, case, address)
        rpc.shutdown()
        desk.wait_for_end()

    def work(self, case: Case, address: str, rank: int, desk: Desk) -> None:
        """One call a step; what it returns is memory of the worker's own, so nothing is copied again."""
        import torch.distributed.rpc as rpc

        from benchmarks.peers.model import Model

        model = Model(case.parameters, rank)
        self._join(f"worker-{rank}", rank + 1, case, address)

        def step() -> None:
            model.parameters = rpc.rpc_sync("server", exchange, args=(model.gradient,))

        desk.pace(step)
        rpc.shutdown()

    def _join(self, name: str, rank: int, case: Case, address: str) -> None:
        import torch.distributed.rpc as rpc

        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = address.split(":")
        options = rpc.TensorPipeRpcBackendOptions(
            init_method=f"tcp://{address}",
            rpc_timeout=TIMEOUT_SECONDS,
            _transports=self._transports,
            _channels=self._channels,
        )
        rpc.init_rpc(name, rank=rank, world_size=case.workers + 1, rpc_backend_options=options)


class _Server:
    """The server's state; one a process."""

    theta: "Tensor"
    lock = threading.Lock()


def exchange(gradient: "Tensor") -> "Tensor":
    """On the server: add, and return the parameters."""
    with _Server.lock:
        _Server.theta.add_(gradient, alpha=-ETA)
    return _Server.theta
