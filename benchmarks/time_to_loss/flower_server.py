"""Flower's server: rounds of FedAvg with at least CLIENTS clients.

    python -m benchmarks.time_to_loss.flower_server CLIENTS

`start_server` and `start_client` are deprecated, but need no process for each message as their successors do.
"""

import sys
from typing import Any

from flwr.common import ndarrays_to_parameters
from flwr.server import ServerConfig, start_server
from flwr.server.strategy import FedAvg

from benchmarks.time_to_loss.worker_context import WorkerContext
from benchmarks.time_to_loss.worlds import WORKERS


class PatientFedAvg(FedAvg):  # type: ignore[misc]
    """Begins when all workers are there."""

    def initialize_parameters(self, client_manager: Any) -> Any:
        """Wait."""
        client_manager.wait_for(WORKERS)
        return super().initialize_parameters(client_manager)


def main() -> None:
    """Serve until killed."""
    context, clients = WorkerContext.from_environment(), int(sys.argv[1])
    initial = [one.detach().numpy() for one in context.model().parameters()]
    strategy = PatientFedAvg(
        fraction_evaluate=0.0,
        min_fit_clients=clients,
        min_available_clients=clients,
        initial_parameters=ndarrays_to_parameters(initial),
    )
    start_server(server_address=context.server, config=ServerConfig(num_rounds=10**9), strategy=strategy)


if __name__ == "__main__":
    main()
