"""A parameter server as a Ray actor, after Ray's own example: arrays go through the object store of shared memory.

The actor adds gradients times -eta and returns the parameters; Ray puts what a call carries and returns into the object
store, and a worker reads it there without a copy. What it reads is read-only and Ray's, so a worker copies it into its
own memory. Workers are drivers that attach to the cluster, so that they are processes like those of all others.
"""

import tempfile
import warnings
from typing import TYPE_CHECKING, Any, ClassVar

from benchmarks.peers.interface import ETA, MB, SERVER_PROCESS, WORKER_PROCESS, Case, Contender, Desk, Home

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RAYS_OWN_PROCESSES = 500 * MB  # raylet, GCS, agents: found
NAMESPACE = "gemps-bench"


class ParameterServer:
    """The actor."""

    def __init__(self, parameters: int) -> None:
        import numpy as np
        import torch

        self._parameters = np.zeros(parameters, np.float32)
        self._theta = torch.from_numpy(self._parameters)
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # arguments are views of the store

    def exchange(self, gradient: "NDArray[np.float32]") -> "NDArray[np.float32]":
        """Add, and return the parameters. Calls come one at a time."""
        import torch

        self._theta.add_(torch.from_numpy(gradient), alpha=-ETA)
        return self._parameters


class RayActor(Contender):
    """One actor, workers that call it."""

    name = "ray-actor"
    title = "Ray actor"
    does = "a plain add in an actor; arrays through Ray's object store, copied by the worker into its own memory"
    home: ClassVar[Home] = "peers"
    preload: ClassVar[tuple[str, ...]] = ("torch", "ray")

    def unavailable(self) -> str | None:
        """It is no dependency of gemps'."""
        from benchmarks.harness.environments import has_peer

        return None if has_peer("ray") else "Ray is not installed: make bench installs it where a package index is"

    def server_memory(self, case: Case) -> int:
        """Theta, the object store, Ray's processes."""
        return SERVER_PROCESS + RAYS_OWN_PROCESSES + case.vector + self.shared_memory(case)

    def shared_memory(self, case: Case) -> int:
        """The object store: each worker's gradient and reply, those of the step before not yet collected."""
        return max(200 * MB, (4 * case.workers + 2) * case.vector)

    def worker_memory(self, case: Case) -> int:
        """The model; what it reads is in the object store."""
        return 2 * WORKER_PROCESS + 3 * case.vector

    def serve(self, case: Case, desk: Desk) -> None:
        """A cluster of one node, and the actor."""
        import ray

        with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
            context = ray.init(
                num_cpus=1,
                include_dashboard=False,
                log_to_driver=False,
                object_store_memory=self.shared_memory(case),
                namespace=NAMESPACE,
                _temp_dir=folder,
            )
            server = ray.remote(num_cpus=1)(ParameterServer).options(name="server").remote(case.parameters)
            ray.get(server.__ray_ready__.remote())
            desk.ready(str(context.address_info["address"]))
            desk.wait_for_end()
            ray.kill(server)
            ray.shutdown()

    def work(self, case: Case, address: str, rank: int, desk: Desk) -> None:
        """One call a step."""
        import ray

        from benchmarks.peers.model import Model

        model = Model(case.parameters, rank)
        gradient = model.gradient.numpy()
        parameters = model.parameters.numpy()
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False)
        server: Any = ray.get_actor("server")

        def step() -> None:
            parameters[:] = ray.get(server.exchange.remote(gradient))

        desk.pace(step)
        ray.shutdown()
