"""The reference worker against the real server: the kit's witness must be right before it can tell who is not."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.client.cutting_proxy import CuttingProxy
from tests.client.real_server import RealServer
from tests.conformance.reference_worker import SPOKEN, Fault, Hopeless, Refused, Worker, decode, encode

ROOT = Path(__file__).parents[2]
ETA = 0.05
SMALL = [
    {"name": "a", "shape": [30, 20], "element_type": "float32", "kind": "parameter"},
    {"name": "none", "shape": [0, 4], "element_type": "float32", "kind": "parameter"},
    {"name": "frozen", "shape": [7], "element_type": "float64", "kind": "frozen", "sha256": "ab" * 32},
    {"name": "seen", "shape": [], "element_type": "int64", "kind": "buffer"},
    {"name": "b", "shape": [3], "element_type": "bfloat16", "kind": "parameter"},
]
LARGE = [{"name": "large", "shape": [500, 600], "element_type": "float32", "kind": "parameter"}, *SMALL]


@pytest.fixture
def server() -> Iterator[RealServer]:
    started = RealServer(eta=ETA, commits=10)
    yield started
    started.stop()


def task(layout: list[dict[str, Any]], delta: str = "float32", parameters: str = "float32") -> dict[str, Any]:
    return {"layout": layout, "delta_wire_types": [delta], "parameter_wire_types": [parameters]}


def first(count: int) -> Any:
    return np.array([((i % 509) - 254) / 256 for i in range(count)], np.float32)


def trained(count: int, commits: int, delta: int = 1, parameters: int = 1, eta: float = ETA) -> Any:
    """What DOWNPOUR makes of the quadratic task with one worker: theta += what arrives of -eta * what was sent."""
    theta = first(count)
    for _ in range(commits):
        held = decode(parameters, encode(parameters, theta))
        step = np.float32(-eta) * held
        theta = theta + decode(delta, encode(delta, step))
    return theta


@pytest.mark.parametrize("parameters", SPOKEN)
@pytest.mark.parametrize("delta", SPOKEN)
def test_it_trains_the_quadratic_task_over_every_pair_of_wire_types(delta: str, parameters: str) -> None:
    server = RealServer(eta=ETA, commits=4)
    try:
        Worker(server.address, "w", task(SMALL, delta, parameters), None).run()
        assert server.clock() == 1 + 4
        expected = trained(603, 4, SPOKEN[delta], SPOKEN[parameters])
        assert server.parameters().tobytes() == expected.tobytes()
    finally:
        server.stop()


def test_large_commits_travel_in_chunks_and_wait_for_proceed() -> None:
    server = RealServer(eta=ETA, commits=3, chunk_bytes=100_001)
    try:
        Worker(server.address, "w", task(LARGE, "bfloat16", "bfloat16"), None).run()
        assert server.parameters().tobytes() == trained(300_603, 3, 3, 3).tobytes()
    finally:
        server.stop()


def test_a_second_worker_pulls_what_the_first_has_uploaded(server: RealServer) -> None:
    workers = [Worker(server.address, f"w{i}", task(SMALL), None) for i in range(2)]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.clock() == 1 + 10
    assert all(worker.finished for worker in workers)


def test_no_commit_is_lost_or_applied_twice_over_connections_that_are_cut() -> None:
    server = RealServer(eta=ETA, commits=6)
    proxy = CuttingProxy(server.port)
    # One payload is 1.2 MB: cuts within the upload, within deltas and behind them, within replies and behind them.
    proxy.cut_after("to_server", 700_000, 1_900_000, 2_500_000, 1_205_000)
    proxy.cut_after("to_client", 500_000, 2_400_000, 1_300_000)
    try:
        Worker(proxy.address, "w", task(LARGE), None).run()
        assert proxy.cuts == 7
        assert server.parameters().tobytes() == trained(300_603, 6).tobytes()
    finally:
        proxy.close()
        server.stop()


def test_it_goes_on_after_a_restart_of_the_server(tmp_path: Path) -> None:
    server = RealServer(eta=0.001, commits=2000, data_dir=tmp_path)
    worker = Worker(server.address, "w", task(SMALL), None)
    ended: list[object] = []
    thread = threading.Thread(target=lambda: ended.append(worker.run()))
    try:
        thread.start()
        server.until(lambda: server.server.central.clock >= 5)
        before = worker.membership.incarnation
        server = server.again(resume=True)
        thread.join()
        assert ended == [None]
        assert worker.membership.incarnation != before
        # If the delta that was under way was dropped, another one has taken its place.
        assert server.parameters().tobytes() == trained(603, 2000, eta=0.001).tobytes()
    finally:
        server.stop()


def test_the_command_ends_with_status_0_when_the_run_is_finished(server: RealServer, tmp_path: Path) -> None:
    assert run(server, tmp_path, task(SMALL)).returncode == 0
    assert server.clock() == 1 + 10


def test_the_command_ends_with_status_3_where_it_speaks_no_wire_type(server: RealServer, tmp_path: Path) -> None:
    assert run(server, tmp_path, task(SMALL, parameters="float8")).returncode == 3
    assert server.clock() == 0


def test_the_command_ends_with_status_1_and_a_line_where_nothing_helps(server: RealServer, tmp_path: Path) -> None:
    run(server, tmp_path, task(SMALL))
    other = run(server, tmp_path, task(SMALL[:1]))
    assert other.returncode == 1
    assert other.stderr.startswith("LAYOUT_MISMATCH: ")


def run(server: RealServer, folder: Path, what: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    path = folder / "task.json"
    path.write_text(json.dumps(what))
    variables = {"GEMPS_SERVER": server.address, "GEMPS_WORKER_NAME": "w", "GEMPS_CONFORMANCE": str(path)}
    command = [sys.executable, str(ROOT / "tests/conformance/reference_worker.py")]
    environment = os.environ | variables | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def faulty(server: RealServer, fault: Fault, **types: str) -> Worker:
    return Worker(server.address, "w", task(SMALL, **types), fault)


def test_without_footers_the_server_takes_nothing(server: RealServer) -> None:
    with pytest.raises(Refused, match="OUT_OF_ORDER"):
        faulty(server, Fault.NO_FOOTER).run()
    assert server.clock() == 0


def test_with_a_wrong_checksum_the_server_takes_nothing(server: RealServer) -> None:
    with pytest.raises(Refused, match="CHECKSUM"):
        faulty(server, Fault.WRONG_CHECKSUM).run()
    assert server.clock() == 0


def test_a_stale_base_is_refused(server: RealServer) -> None:
    faulty(server, Fault.STALE_BASE).run()
    [worker] = server.in_loop(lambda: list(server.server.workers.by_rank()))
    assert worker.telemetry.refused >= 4


def test_with_a_wrong_digest_it_takes_the_run_for_another_model(server: RealServer) -> None:
    with pytest.raises(Hopeless, match="digest"):
        faulty(server, Fault.WRONG_DIGEST).run()


def test_a_truncating_bfloat16_shows_in_the_parameters(server: RealServer) -> None:
    faulty(server, Fault.TRUNCATING_BFLOAT16, delta="bfloat16").run()
    assert server.parameters().tobytes() != trained(603, 10, SPOKEN["bfloat16"]).tobytes()
