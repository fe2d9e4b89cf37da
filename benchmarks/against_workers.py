"""The workers of `against.py`, forked from one process, which prints what they did. Runs with either revision."""

import json
import os
import sys
import time

import numpy as np
from gem_worker.client.client import Client
from gem_worker.client.settings import ClientSettings

from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec
from gem_core.payload import PayloadFormat
from gem_core.wire_types import WireType, encode

WARM_UP_SECONDS = 1.0


def work(address: str, parameters: int, wire: WireType, rank: int, start: int, out: int, seconds: float) -> None:
    """One worker's life: commits until the time is over; writes its commits and processor seconds to `out`."""
    layout = Layout([TensorSpec("weight", (parameters,), ElementType.FLOAT32, TensorKind.PARAMETER)])
    values = np.random.default_rng(rank).standard_normal(parameters).astype(np.float32) * np.float32(1e-3)
    delta = memoryview(bytes(encode(wire, values)))
    settings = ClientSettings(connect_timeout=120)
    with Client(
        address,
        worker_name=f"worker-{rank}",
        layout=layout,
        delta_wire_types=(wire,),
        parameter_wire_types=(wire,),
        settings=settings,
    ) as client:
        if not client.join().has_parameters:
            client.initialize(memoryview(values))
        into = memoryview(bytearray(PayloadFormat(layout, wire).byte_count))
        client.pull(into)
        scale = -0.05 if wire is WireType.FLOAT32 else None
        client.commit(delta, into, scale=scale)
        os.write(out, b".")
        os.read(start, 1)
        warm = time.monotonic() + WARM_UP_SECONDS
        while time.monotonic() < warm:
            client.commit(delta, into, scale=scale)
        commits, begun, used = 0, time.monotonic(), time.process_time()
        while time.monotonic() - begun < seconds:
            client.commit(delta, into, scale=scale)
            commits += 1
        lasted = time.monotonic() - begun
        os.write(out, json.dumps([commits, lasted, time.process_time() - used]).encode() + b"\n")


def main() -> None:
    """Fork them, wait until each has committed once, let them go, and print the sums."""
    address, parameters, wire, workers, seconds = sys.argv[1:]
    start, begin = os.pipe()
    results, out = os.pipe()
    children = []
    for rank in range(int(workers)):
        child = os.fork()
        if child == 0:
            work(address, int(parameters), WireType[wire.upper()], rank, start, out, float(seconds))
            os._exit(0)
        children.append(child)
    ready = 0
    while ready < len(children):
        ready += len(os.read(results, len(children)))
    os.write(begin, bytes(len(children)))
    time.sleep(WARM_UP_SECONDS)
    print("measuring", flush=True)
    found = b""
    while found.count(b"\n") < len(children):
        found += os.read(results, 1 << 16)
    rows = [json.loads(line) for line in found.splitlines()]
    commits, processor = sum(row[0] for row in rows), sum(row[2] for row in rows)
    print(json.dumps({"commits": commits, "seconds": float(np.mean([row[1] for row in rows])), "processor": processor}))
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
