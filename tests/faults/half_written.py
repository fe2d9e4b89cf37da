"""A worker of the client library that dies while it writes a delta: half_written.py ADDRESS NAME PARAMETERS COMMITS.

It commits so many deltas of ones through shared memory, says so, and then writes values that no delta may have into the
shared region, over and over, until it is killed.
"""

import sys

import numpy as np
from gem_worker.client import Client

from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec


def main(address: str, name: str, parameters: int, commits: int) -> None:
    layout = Layout([TensorSpec("weight", (parameters,), ElementType.FLOAT32, TensorKind.PARAMETER)])
    held = memoryview(bytearray(4 * parameters))
    client = Client(address, worker_name=name, layout=layout)
    if not client.join().has_parameters:
        client.initialize(held)
    client.pull(held)
    for _ in range(commits):
        delta = client.shared_delta
        assert delta is not None
        np.frombuffer(delta, np.float32)[:] = 1
        client.commit(delta, held, in_place=True)
    delta = client.shared_delta
    assert delta is not None
    values = np.frombuffer(delta, np.float32)
    print("writing", flush=True)
    while True:
        for place in range(0, parameters, 16):
            values[place : place + 16] = np.nan


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
