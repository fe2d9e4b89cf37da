"""A worker of the client library without PyTorch, until it is ended: python light_worker.py ADDRESS NAME."""

import sys

import numpy as np
from gem_worker.client import Client

from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec

PARAMETERS = 2_048


def main(address: str, name: str) -> None:
    layout = Layout([TensorSpec("weight", (PARAMETERS,), ElementType.FLOAT32, TensorKind.PARAMETER)])
    held = memoryview(bytearray(4 * PARAMETERS))
    delta = memoryview(np.full(PARAMETERS, 1e-6, np.float32).tobytes())
    with Client(address, worker_name=name, layout=layout) as client:
        if not client.join().has_parameters:
            client.initialize(held)
        client.pull(held)
        while True:
            client.commit(delta, held)


if __name__ == "__main__":
    main(*sys.argv[1:])
