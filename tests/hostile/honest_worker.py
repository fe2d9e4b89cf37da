"""A worker that commits until its standard input ends: python honest_worker.py ADDRESS NAME PARAMETERS RECORD.

It is gemps' own client with its settings as they come, so it takes the best transport that the server offers. Its first
line says which one that is, and its session's id, for attackers that have stolen it.
"""

import json
import sys
import threading

import numpy as np
import psutil
from gem_worker.client import Client

from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec
from tests.hostile.recorder import Recorder


def main(address: str, name: str, parameters: str, record: str) -> None:
    count = int(parameters)
    layout = Layout([TensorSpec("weight", (count,), ElementType.FLOAT32, TensorKind.PARAMETER)])
    held = memoryview(bytearray(4 * count))
    delta = memoryview(np.full(count, 1e-6, np.float32).tobytes())
    recorder = Recorder(record)
    done = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
    with Client(address, worker_name=name, layout=layout) as client:
        if not client.join().has_parameters:
            client.initialize(held)
        client.pull(held)
        client.commit(delta, held)
        said = {"transport": transport(client, address), "session": client.session_id.hex()}
        print(json.dumps(said), flush=True)
        while not done.is_set():
            with recorder.timing():
                client.commit(delta, held)


def transport(client: Client, address: str) -> str:
    """How its commits travel, as the system sees it: by the port that this process is connected to."""
    ordinary = int(address.rpartition(":")[2])
    peers = [one.raddr.port for one in psutil.Process().net_connections("tcp") if one.raddr]
    other = [port for port in peers if port != ordinary]
    way = f"second port ({len(other)} connection)" if other else f"ordinary port ({len(peers)} connections)"
    return f"shared memory, {way}" if client.shared_delta is not None else way


if __name__ == "__main__":
    main(*sys.argv[1:])
