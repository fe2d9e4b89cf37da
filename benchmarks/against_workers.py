"""The workers of `against.py`, forked from one process, which counts their commits. Runs with either revision."""

import mmap
import os
import sys

import numpy as np
from gem_worker.client.client import Client
from gem_worker.client.settings import ClientSettings

from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec
from gem_core.payload import PayloadFormat
from gem_core.wire_types import WireType, encode


def work(address: str, parameters: int, wire: WireType, rank: int, ready: int, commits: "np.ndarray") -> None:
    """One worker's life: commits, which it counts in `commits[rank]`, until `commits[-1]` is not 0."""
    layout = Layout([TensorSpec("weight", (parameters,), ElementType.FLOAT32, TensorKind.PARAMETER)])
    values = np.random.default_rng(rank).standard_normal(parameters).astype(np.float32) * np.float32(1e-3)
    delta = memoryview(bytes(encode(wire, values)))
    # Parameters in a type of differences depend on what the worker holds; a worker that sends int4 gets bfloat16 here.
    reply = wire if wire in (WireType.FLOAT32, WireType.BFLOAT16) else WireType.BFLOAT16
    settings = ClientSettings(connect_timeout=120)
    with Client(
        address,
        worker_name=f"worker-{rank}",
        layout=layout,
        delta_wire_types=(wire,),
        parameter_wire_types=(reply,),
        settings=settings,
    ) as client:
        if not client.join().has_parameters:
            client.initialize(memoryview(values))
        into = memoryview(bytearray(PayloadFormat(layout, reply).byte_count))
        client.pull(into)
        scale = -0.05 if wire is WireType.FLOAT32 else None
        client.commit(delta, into, scale=scale)
        os.write(ready, b".")
        while not commits[-1]:
            client.commit(delta, into, scale=scale)
            commits[rank] += 1


def main() -> None:
    """Fork them; print their process ids when each has committed, and for each line of input their commits so far."""
    address, parameters, wire, workers = sys.argv[1:]
    commits = np.frombuffer(mmap.mmap(-1, 8 * (int(workers) + 1)), np.int64)
    ready, out = os.pipe()
    children = []
    for rank in range(int(workers)):
        child = os.fork()
        if child == 0:
            work(address, int(parameters), WireType[wire.upper()], rank, out, commits)
            os._exit(0)
        children.append(child)
    os.close(out)  # so that reading ends when all workers have died
    begun = 0
    while begun < len(children):
        if not (answers := os.read(ready, len(children))):
            raise SystemExit("the workers ended before their first commit")
        begun += len(answers)
    print(*children, flush=True)
    for _ in sys.stdin:
        print(commits[:-1].sum(), flush=True)
    commits[-1] = 1
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
