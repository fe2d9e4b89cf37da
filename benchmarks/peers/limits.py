"""What the machine itself sets: copying memory, and plain TCP on loopback. No server could need less."""

import socket
import threading
from contextlib import suppress
from typing import ClassVar

from benchmarks.peers.interface import MB, SERVER_PROCESS, WORKER_PROCESS, Case, Contender, Desk, Kind

SOCKET_BUFFER = 4 * 1024 * 1024  # the kernel gives what net.core.wmem_max allows


class MemoryCopy(Contender):
    """No server: each worker copies a gradient out and parameters in, within its own memory."""

    name = "memory-copy"
    title = "memory copy"
    does = "no server and no waiting: every worker copies a gradient once and parameters once"
    kind: ClassVar[Kind] = "limit"
    updates: ClassVar[bool] = False

    def server_memory(self, case: Case) -> int:
        """There is none."""
        return 0

    def worker_memory(self, case: Case) -> int:
        """The model, and two vectors more."""
        return WORKER_PROCESS + 4 * case.vector

    def work(self, case: Case, address: str, rank: int, desk: Desk) -> None:
        """Copy."""
        import torch

        from benchmarks.peers.model import Model

        model = Model(case.parameters, rank)
        staged = torch.zeros(case.parameters)
        theta = torch.zeros(case.parameters)

        def step() -> None:
            staged.copy_(model.gradient)
            model.parameters.copy_(theta)

        desk.pace(step)


class PlainTcp(Contender):
    """As many bytes over a socket, and back."""

    name = "tcp"
    title = "plain TCP"
    does = (
        "a thread a worker receives the gradient into a buffer and sends as many bytes back; no framing, no mathematics"
    )
    kind: ClassVar[Kind] = "limit"
    updates: ClassVar[bool] = False

    def server_memory(self, case: Case) -> int:
        """A buffer a worker."""
        return SERVER_PROCESS + case.workers * (case.vector + 1 * MB)

    def worker_memory(self, case: Case) -> int:
        """The model: the gradient is sent as it lies, and what comes is received into the parameters."""
        return WORKER_PROCESS + 2 * case.vector

    def serve(self, case: Case, desk: Desk) -> None:
        """A thread for each connection."""
        with socket.create_server(("127.0.0.1", 0), backlog=case.workers) as door:
            desk.ready(f"127.0.0.1:{door.getsockname()[1]}")
            threads = []
            for _ in range(case.workers):
                connection, _ = door.accept()
                threads.append(threading.Thread(target=_echo, args=(connection, case.vector)))
                threads[-1].start()
            for thread in threads:
                thread.join()
        desk.wait_for_end()

    def work(self, case: Case, address: str, rank: int, desk: Desk) -> None:
        """Send all, receive all."""
        from benchmarks.peers.model import Model

        model = Model(case.parameters, rank)
        outgoing = memoryview(model.gradient.numpy()).cast("B")
        incoming = memoryview(model.parameters.numpy()).cast("B")
        host, port = address.split(":")
        with socket.create_connection((host, int(port))) as connection:
            tune(connection)

            def step() -> None:
                connection.sendall(outgoing)
                receive(connection, incoming)

            desk.pace(step)


def tune(connection: socket.socket) -> None:
    """Nothing waits for more to send, and much can be on its way."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER)


def receive(connection: socket.socket, into: memoryview) -> None:
    """Fill `into`. Raises EOFError when the other end hangs up first."""
    while into:
        count = connection.recv_into(into)
        if not count:
            raise EOFError
        into = into[count:]


def _echo(connection: socket.socket, size: int) -> None:
    buffer = memoryview(bytearray(size))
    tune(connection)
    with connection, suppress(EOFError):
        while True:
            receive(connection, buffer)
            connection.sendall(buffer)
