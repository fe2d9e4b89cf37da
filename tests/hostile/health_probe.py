"""Asks the server's health until its standard input ends: python health_probe.py ADDRESS RECORD [CA_FILE].

Each probe has a connection of its own, as that of a Kubernetes kubelet has.
"""

import contextlib
import sys
import threading
import time
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.hostile.recorder import Recorder

INTERVAL_SECONDS = 0.1
PATIENCE_SECONDS = 10.0
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


def main(address: str, record: str, ca_file: str = "") -> None:
    recorder = Recorder(record)
    done = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
    credentials = grpc.ssl_channel_credentials(Path(ca_file).read_bytes()) if ca_file else None
    while not done.is_set():
        began = time.monotonic()
        with contextlib.suppress(grpc.RpcError), recorder.timing():
            probe(address, credentials)
        done.wait(max(0.0, began + INTERVAL_SECONDS - time.monotonic()))


def probe(address: str, credentials: grpc.ChannelCredentials | None) -> None:
    opened = (
        grpc.insecure_channel(address, OWN_CONNECTION)
        if credentials is None
        else grpc.secure_channel(address, credentials, OWN_CONNECTION)
    )
    with opened as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_SECONDS)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


if __name__ == "__main__":
    main(*sys.argv[1:])
