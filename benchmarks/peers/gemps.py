"""gemps itself: `gemps serve` with its defaults, and the client library as `gem_worker.Transfer` uses it on a CPU.

A step is what `ParameterServer.step` does between two backward passes, but for zeroing the gradient. Over the stream:
scale by -eta into the payload and look for values that no server would take, encode, commit, decode into the flat
parameters. In float32, and through shared memory: commit the gradient where it lies, with the factor, and copy the
parameters. The server does the whole of GEM, its statistics included.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from benchmarks.peers.interface import ETA, SERVER_PROCESS, WORKER_PROCESS, Case, Contender, Desk, Kind

if TYPE_CHECKING:
    from gem_core.layout import Layout
    from gem_core.wire_types import WireType

WIRE_TYPES = ("float32", "bfloat16")
STAGING_BUFFERS = 4  # by default; those of small models take 1 MiB at most


def _bytes(wire_type: str, case: Case) -> int:
    return case.vector if wire_type == "float32" else case.vector // 2


class Gemps(Contender):
    """Over the stream; deltas and parameters each in a wire type."""

    kind: ClassVar[Kind] = "gemps"
    preload: ClassVar[tuple[str, ...]] = ("torch", "gem_worker.wire_casts", "gem_worker.client.client")

    def __init__(self, delta: str, parameters: str) -> None:
        self.delta = delta
        self.parameters = parameters
        same = delta == parameters
        self.name = f"gemps-{delta}" if same else f"gemps-{delta}-{parameters}"
        self.title = f"gemps, {delta}" if same else f"gemps, {delta} deltas, {parameters} parameters"
        self.does = "Commit stream over TCP, GEM on the server, encoded and decoded by the worker"

    def server_memory(self, case: Case) -> int:
        """Theta, moment and snapshot of each worker, staging buffers; and as many uploads of first parameters."""
        return SERVER_PROCESS + (1 + 2 * case.workers + 2 * min(STAGING_BUFFERS, case.workers)) * case.vector

    def worker_memory(self, case: Case) -> int:
        """The model, and both payloads."""
        payloads = _bytes(self.delta, case) + _bytes(self.parameters, case)
        return WORKER_PROCESS + 2 * case.vector + payloads

    def command(self, case: Case, folder: Path) -> list[str]:
        """The real one."""
        return [
            sys.executable,
            "-m",
            "gem_cli",
            "serve",
            "--bind=127.0.0.1:0",
            f"--eta={ETA}",
            f"--min-workers={case.workers}",
            f"--ready-file={folder / 'ready.json'}",
            *self.flags(folder),
        ]

    def flags(self, folder: Path) -> list[str]:
        """More of the server's."""
        return []

    def work(self, case: Case, address: str, rank: int, desk: Desk) -> None:
        """As a real worker."""
        import torch
        from gem_worker.client.client import Client
        from gem_worker.wire_casts import HostDecoder, HostEncoder

        from benchmarks.peers.model import Model
        from gem_core.payload import PayloadFormat
        from gem_core.wire_types import WireType

        layout = layout_of(case)
        delta_type, parameter_type = wire_type_of(self.delta), wire_type_of(self.parameters)
        model = Model(case.parameters, rank)
        with Client(
            address,
            worker_name=f"worker-{rank}",
            layout=layout,
            delta_wire_types=(delta_type,),
            parameter_wire_types=(parameter_type,),
        ) as client:
            if not client.join().has_parameters:
                client.initialize(memoryview(model.parameters.numpy()))
            reply = torch.empty(PayloadFormat(layout, parameter_type).byte_count, dtype=torch.uint8)
            incoming = reply.numpy().data
            client.pull(incoming)
            gradient = model.gradient.numpy().data
            payload = torch.empty(PayloadFormat(layout, delta_type).byte_count, dtype=torch.uint8)
            outgoing = payload.numpy().data
            encoder = HostEncoder(delta_type, model.gradient, payload)
            decoder = HostDecoder(parameter_type, reply, model.parameters)

            def step() -> None:
                if delta_type is WireType.FLOAT32:
                    client.commit(gradient, incoming, scale=-ETA)
                else:
                    if not encoder.encode(-ETA):
                        raise ValueError("the delta is not finite")
                    client.commit(outgoing, incoming)
                decoder.decode()

            desk.pace(step)


class GempsSharedMemory(Gemps):
    """Through memory that server and workers share."""

    def __init__(self) -> None:
        super().__init__("float32", "float32")
        self.name = "gemps-shared-memory"
        self.title = "gemps, shared memory"
        self.does = (
            "float32 through shared memory, GEM on the server; parameters copied by the worker into its own memory"
        )

    def unfit(self, case: Case) -> str | None:
        """Small payloads travel in one message of the stream."""
        from gem_worker.client.shared_memory import SMALLEST_SHARED_BYTES

        if case.vector < SMALLEST_SHARED_BYTES:
            return "payloads up to 64 KiB go over the stream in one message: see gemps-float32"
        return None

    def server_memory(self, case: Case) -> int:
        """What the stream takes, and a region for snapshots and one for deltas a worker."""
        return super().server_memory(case) + 2 * case.workers * case.vector

    def shared_memory(self, case: Case) -> int:
        """Memory of the kernel without a name: not in /dev/shm."""
        return 0

    def worker_memory(self, case: Case) -> int:
        """The model, and the buffer for parameters, were they to come by the stream."""
        return WORKER_PROCESS + 3 * case.vector

    def flags(self, folder: Path) -> list[str]:
        """The socket."""
        return [f"--shared-memory-socket={folder / 'memory'}"]

    def work(self, case: Case, address: str, rank: int, desk: Desk) -> None:
        """As a real worker of a plain float32 model.

        Its gradient lies in shared memory, where the server multiplies it by -eta while it copies and judges it; the
        parameters are copied from there.
        """
        import numpy as np
        from gem_worker.client.client import Client

        from benchmarks.peers.model import Model

        model = Model(case.parameters, rank)
        installed = model.parameters.numpy()
        with Client(address, worker_name=f"worker-{rank}", layout=layout_of(case)) as client:
            if not client.join().has_parameters:
                client.initialize(memoryview(installed))
            incoming = memoryview(np.zeros(case.parameters, np.float32))
            client.pull(incoming)
            outgoing = client.shared_delta
            if outgoing is None:
                raise RuntimeError("the server shared no memory")
            np.copyto(np.frombuffer(outgoing, np.float32), model.gradient.numpy())

            def step() -> None:
                if client.shared_delta is not outgoing:
                    raise RuntimeError("the server let go of the shared memory")
                outcome = client.commit(outgoing, incoming, in_place=True, scale=-ETA)
                np.copyto(installed, np.frombuffer(outcome.parameters, np.float32))

            desk.pace(step)


def layout_of(case: Case) -> "Layout":
    """One tensor."""
    from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec

    return Layout([TensorSpec("weight", (case.parameters,), ElementType.FLOAT32, TensorKind.PARAMETER)])


def wire_type_of(name: str) -> "WireType":
    """Of a name as in `WIRE_TYPES`."""
    from gem_core.wire_types import WireType

    return WireType[name.upper()]
