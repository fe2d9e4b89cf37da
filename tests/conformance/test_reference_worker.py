"""The reference worker trains correctly with the real server, so that the kit expects what the product does."""

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from gemps.v1 import worker_pb2_grpc

from tests.client.cutting_proxy import CuttingProxy
from tests.client.real_server import RealServer
from tests.conformance.candidates import REFERENCE

_SPEC = importlib.util.spec_from_file_location("reference_worker", REFERENCE)
assert _SPEC is not None
assert _SPEC.loader is not None
reference: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(reference)

ETA = 0.05
SMALL = [
    {"name": "a", "shape": [30, 20], "element_type": "float32", "kind": "parameter"},
    {"name": "none", "shape": [0, 4], "element_type": "float32", "kind": "parameter"},
    {"name": "b", "shape": [3], "element_type": "bfloat16", "kind": "parameter"},
    {"name": "seen", "shape": [], "element_type": "int64", "kind": "buffer"},
    {"name": "frozen", "shape": [7], "element_type": "float64", "kind": "frozen", "sha256": "ab" * 32},
]
LARGE = [{"name": "large", "shape": [500, 600], "element_type": "float32", "kind": "parameter"}, *SMALL]


@pytest.fixture
def server() -> Iterator[RealServer]:
    started = RealServer(eta=ETA, commits=10)
    yield started
    started.stop()


def task(layout: list[dict[str, Any]], delta: str = "float32", parameters: str = "float32") -> dict[str, Any]:
    return {"layout": layout, "delta_wire_types": [delta], "parameter_wire_types": [parameters]}


def train(address: str, what: dict[str, Any], name: str = "w") -> int:
    """Run a worker until it ends, and return its exit status."""
    with grpc.insecure_channel(address) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)  # type: ignore[no-untyped-call]
        status: int = reference.Worker(stub, name, what).run()
    return status


def trained(count: int, commits: int, delta: int = 1, parameters: int = 1, eta: float = ETA) -> Any:
    """Return the PARAMETERs after `commits` commits of one worker with DOWNPOUR on the quadratic task.

    `delta` and `parameters` are the wire types, through which both directions are rounded.
    """
    theta = np.array([((i % 509) - 254) / 256 for i in range(count)], np.float32)
    for _ in range(commits):
        held = reference.decode(parameters, reference.encode(parameters, theta))
        theta = theta + reference.decode(delta, reference.encode(delta, np.float32(-eta) * held))
    return theta


@pytest.mark.parametrize("parameters", ["float32", "bfloat16"])
@pytest.mark.parametrize("delta", ["float32", "bfloat16"])
def test_it_trains_the_quadratic_task_over_every_pair_of_wire_types(delta: str, parameters: str) -> None:
    server = RealServer(eta=ETA, commits=4)
    try:
        assert train(server.address, task(SMALL, delta, parameters)) == 0
        expected = trained(603, 4, reference.WIRE_TYPES[delta], reference.WIRE_TYPES[parameters])
        assert server.parameters().tobytes() == expected.tobytes()
    finally:
        server.stop()


def test_large_commits_travel_in_chunks_and_wait_for_proceed() -> None:
    server = RealServer(eta=ETA, commits=3, chunk_bytes=100_001)
    try:
        assert train(server.address, task(LARGE, "bfloat16", "bfloat16")) == 0
        assert server.parameters().tobytes() == trained(300_603, 3, 3, 3).tobytes()
    finally:
        server.stop()


def test_a_second_worker_pulls_what_the_first_has_uploaded(server: RealServer) -> None:
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda name=f"w{i}": statuses.append(train(server.address, task(SMALL), name)))
        for i in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (statuses, server.clock()) == ([0, 0], 1 + 10)


def test_no_commit_is_applied_twice_over_connections_that_are_cut() -> None:
    server = RealServer(eta=ETA, commits=6)
    proxy = CuttingProxy(server.port)
    # A payload has 1.2 MB. The cuts are within the upload, within and after deltas, and within and after replies.
    proxy.cut_after("to_server", 700_000, 1_900_000, 2_500_000, 1_205_000)
    proxy.cut_after("to_client", 500_000, 2_400_000, 1_300_000)
    try:
        assert train(proxy.address, task(LARGE)) == 0
        assert proxy.cuts == 7
        # Each lost delta is replaced by one that is computed from the parameters of the next Pull.
        assert server.parameters().tobytes() == trained(300_603, 6).tobytes()
    finally:
        proxy.close()
        server.stop()


def test_it_continues_after_a_restart_of_the_server(tmp_path: Path) -> None:
    server = RealServer(eta=0.001, commits=2000, data_dir=tmp_path)
    ended: list[int] = []
    thread = threading.Thread(target=lambda: ended.append(train(server.address, task(SMALL))))
    try:
        thread.start()
        server.until(lambda: server.server.central.clock >= 5)
        server = server.again(resume=True)
        thread.join()
        assert ended == [0]
        assert server.parameters().tobytes() == trained(603, 2000, eta=0.001).tobytes()
    finally:
        server.stop()


def test_the_command_ends_with_the_statuses_that_the_contract_asks_for(server: RealServer, tmp_path: Path) -> None:
    assert run(server, tmp_path, task(SMALL, parameters="float8")).returncode == 3
    assert run(server, tmp_path, task(SMALL)).returncode == 0
    assert server.clock() == 1 + 10
    other = run(server, tmp_path, task(SMALL[:1]))
    assert (other.returncode, "model is not the run's" in other.stderr) == (2, True)


def run(server: RealServer, folder: Path, what: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    path = folder / "task.json"
    path.write_text(json.dumps(what), encoding="utf-8")
    variables = {"GEMPS_SERVER": server.address, "GEMPS_WORKER_NAME": "w", "GEMPS_CONFORMANCE": str(path)}
    command = [sys.executable, str(REFERENCE)]
    environment = os.environ | variables
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
