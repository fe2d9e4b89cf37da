"""Flower moving a model there and back: its own gRPC server and clients, and rounds (transfer only).

Flower is made for rounds of federated learning: the server sends the model to all clients and waits for all of them. A
step of a client here is one round: the model arrives, is copied into the worker's memory, and a gradient goes back,
which the server throws away. This is `start_server` and `start_client`: deprecated in favour of SuperLink and
SuperNode, but what moves a model fastest in Flower, since the newer way starts a process for each message. Parameters
travel as plain bytes, which spares it NumPy's file format.
"""

import socket
import threading
import time
from queue import SimpleQueue
from typing import Any, ClassVar

from benchmarks.peers.interface import LARGEST_KEPT, SERVER_PROCESS, WORKER_PROCESS, Case, Contender, Desk, Home

MESSAGE_LIMIT = 2**31 - 1  # the most that gRPC takes


class FlowerTransfer(Contender):
    """Rounds that change nothing."""

    name = "flower-transfer"
    title = "Flower (transfer only)"
    does = "rounds with all workers, the model there and a gradient back; the server adds nothing"
    home: ClassVar[Home] = "peers"
    updates: ClassVar[bool] = False
    preload: ClassVar[tuple[str, ...]] = ("torch", "flwr.server", "flwr.client")

    def unavailable(self) -> str | None:
        """It is no dependency of gemps'."""
        from benchmarks.harness.environments import has_peer

        return None if has_peer("flwr") else "Flower is not installed: make bench installs it where a package index is"

    def server_memory(self, case: Case) -> int:
        """Theta; of each worker, messages on their way and what they are parsed into, and what freed ones leave."""
        kept = 8 * min(case.vector, LARGEST_KEPT)
        return SERVER_PROCESS + (1 + 7 * case.workers) * case.vector + case.workers * kept

    def worker_memory(self, case: Case) -> int:
        """The model, messages on their way and what they are parsed into (found: 9 vectors)."""
        return WORKER_PROCESS + (3 + 9) * case.vector

    def serve(self, case: Case, desk: Desk) -> None:
        """Rounds until the workers hang up."""
        import numpy as np
        from flwr.common import FitIns, Parameters
        from flwr.server import Server, ServerConfig, SimpleClientManager, start_server
        from flwr.server.history import History
        from flwr.server.strategy import FedAvg

        theta = np.zeros(case.parameters, np.float32)

        class NoUpdate(FedAvg):  # type: ignore[misc]
            def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> list[Any]:
                instructions = FitIns(Parameters([theta.tobytes()], "float32"), {})
                return [(client, instructions) for client in client_manager.all().values()]

            def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> tuple[None, dict[str, Any]]:
                return None, {}

        class Rounds(Server):  # type: ignore[misc]
            def fit(self, num_rounds: int, timeout: float | None) -> tuple[Any, float]:
                self.client_manager().wait_for(case.workers)
                self.set_max_workers(case.workers)
                failures: list[Any] = []
                while not failures:  # a worker that leaves is one
                    _, _, (_, failures) = self.fit_round(1, timeout)
                return History(), 0.0

            def disconnect_all_clients(self, timeout: float | None) -> None:
                """They have gone by themselves."""

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        desk.ready(address)
        start_server(
            server_address=address,
            server=Rounds(client_manager=SimpleClientManager(), strategy=NoUpdate()),
            config=ServerConfig(num_rounds=1),
            grpc_max_message_length=MESSAGE_LIMIT,
        )
        desk.wait_for_end()

    def work(self, case: Case, address: str, rank: int, desk: Desk) -> None:
        """A client that notes when the model arrives; a step is the time from one arrival to the next."""
        import numpy as np
        from flwr.client import Client, start_client
        from flwr.common import Code, FitRes, Parameters, Status

        from benchmarks.harness.desk import WARM_UP_STEPS
        from benchmarks.peers.model import Model

        model = Model(case.parameters, rank)
        gradient = model.gradient.numpy()
        into = model.parameters.numpy()
        arrivals: SimpleQueue[float] = SimpleQueue()

        class Mover(Client):  # type: ignore[misc]
            def fit(self, ins: Any) -> Any:
                into[:] = np.frombuffer(ins.parameters.tensors[0], np.float32)
                arrivals.put(time.monotonic())
                return FitRes(Status(Code.OK, ""), Parameters([gradient.tobytes()], "float32"), 1, {})

        arguments = {"server_address": address, "client": Mover(), "grpc_max_message_length": MESSAGE_LIMIT}
        threading.Thread(target=start_client, kwargs=arguments | {"insecure": True}, daemon=True).start()
        for _ in range(WARM_UP_STEPS):
            moment = arrivals.get()
        start, end = desk.start()
        began = moment
        while moment < start:  # rounds go on while the others warm up; the last arrival before the start counts
            began, moment = moment, arrivals.get()
        took = [moment - began]
        while moment < end:
            before, moment = moment, arrivals.get()
            took.append(moment - before)
        desk.finish(took, began)
