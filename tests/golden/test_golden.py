"""The final parameters of runs that must not change: their SHA-256 is in `digests.json`.

Workers take turns (`--order round-robin`), and their deltas follow from the parameters they pulled and from NumPy's
seeded random numbers, elementwise in float32. So each run ends with the same bits on every machine, over every
transport, and on any number of shards. A digest changes only with a change of mathematics that was meant. Then
`GEMPS_WRITE_DIGESTS=1 pytest tests/golden` writes the new ones.
"""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gem_worker.client import Client, ClientSettings
from numpy.typing import NDArray

from gem_core import wire_kernels
from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec
from gem_core.wire_types import WireType
from tests.shards.group import free_port, serving

Float32 = NDArray[np.float32]

DIGESTS = Path(__file__).parent / "digests.json"
WRITES = bool(os.environ.get("GEMPS_WRITE_DIGESTS"))
WORKERS, ROUNDS = 3, 5
# Large enough for chunks, parallel kernels and shared memory; cuts of 2 and 3 shards lie within tensors and blocks.
MODEL = Layout(
    [
        TensorSpec("embedding", (300, 50), ElementType.FLOAT32, TensorKind.PARAMETER, is_embedding=True),
        TensorSpec("weight", (1_150_003,), ElementType.FLOAT32, TensorKind.PARAMETER),
        TensorSpec("bias", (2_003,), ElementType.FLOAT32, TensorKind.PARAMETER),
        TensorSpec("steps", (), ElementType.INT64, TensorKind.BUFFER),
    ]
)
RULES: dict[str, dict[str, Any]] = {
    "gem": {"eta": 0.05, "weight_decay": 0.01},
}
TRANSPORTS = ("lane", "grpc", "shared-memory")


class Worker:
    """Moves the parameters towards its own target, with noise. A fifth of its gradient's elements are 0."""

    def __init__(self, address: str, number: int, transport: str, wire_type: WireType) -> None:
        self._random = np.random.default_rng(number)
        self._target = np.random.default_rng(100 + number).standard_normal(MODEL.parameter_count, np.float32)
        self._wire_type = wire_type
        self.client = Client(
            address,
            worker_name=f"worker-{number}",
            layout=MODEL,
            delta_wire_types=[wire_type],
            settings=ClientSettings(
                lane=transport == "lane", shared_memory=transport == "shared-memory", connect_timeout=240.0
            ),
        )
        self._held = memoryview(bytearray(4 * MODEL.parameter_count + 8))

    def begin(self) -> None:
        """Join, and upload the first parameters if there are none."""
        if not self.client.join().has_parameters:
            first = np.random.default_rng(7).standard_normal(MODEL.parameter_count, np.float32)
            self.client.initialize(memoryview(first.tobytes() + bytes(8)))

    def train(self, commits: int, eta: float) -> None:
        """Pull, and make this number of commits."""
        self.client.pull(self._held)
        for _ in range(commits):
            assert self.client.commit(self._delta(eta), self._held, loss=1.0, samples=1).applied

    def _delta(self, eta: float) -> memoryview:
        theta = np.frombuffer(self._held, np.float32, MODEL.parameter_count)
        noise = self._random.standard_normal(theta.size, np.float32)
        values = np.float32(-eta) * ((theta - self._target) + noise)
        values[self._random.random(theta.size, np.float32) < 0.2] = 0
        steps = np.frombuffer(self._held[-8:], np.int64) + 1
        return memoryview(bytes(wire_kernels.encode(self._wire_type, values)) + steps.tobytes())

    def end(self) -> None:
        self.client.leave("done")
        self.client.close()


@contextmanager
def training(address: str, transport: str, wire_type: WireType = WireType.FLOAT32) -> Iterator[list[Worker]]:
    """Workers that have joined; they leave in the end."""
    workers = [Worker(address, number, transport, wire_type) for number in range(WORKERS)]
    for worker in workers:
        worker.begin()
    yield workers
    for worker in workers:
        worker.end()


def train(workers: list[Worker], commits: int, eta: float) -> None:
    """Let all workers make this number of commits each, concurrently."""
    errors: list[BaseException] = []

    def one(worker: Worker) -> None:
        try:
            worker.train(commits, eta)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not errors, errors
    assert not any(thread.is_alive() for thread in threads)


def run(rule: str, transport: str, shards: int, sockets: Path, wire_type: WireType = WireType.FLOAT32) -> Float32:
    """The parameters after a whole run."""
    own = {"rule": "gem", "threads": 2, **RULES[rule]}
    in_turn = {"order": "round-robin", "min_workers": WORKERS}
    places = sockets if transport == "shared-memory" else None
    with (
        serving(shards, sockets=places, of_secondaries=own, **own, **in_turn) as group,
        training(group.address, transport, wire_type) as workers,
    ):
        train(workers, ROUNDS, own["eta"])
        assert set(group.clocks()) == {1 + WORKERS * ROUNDS}
        return group.parameters()


def check(name: str, parameters: Float32) -> None:
    """Compare with the recorded digest, or record it."""
    assert np.isfinite(parameters).all()
    digest = hashlib.sha256(parameters.tobytes()).hexdigest()
    known = json.loads(DIGESTS.read_text(encoding="utf-8")) if DIGESTS.exists() else {}
    if WRITES:
        DIGESTS.write_text(json.dumps(known | {name: digest}, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    else:
        assert digest == known[name], f"{name}: the final parameters have changed"


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_each_transport(rule: str, transport: str, tmp_path: Path) -> None:
    check(rule, run(rule, transport, 1, tmp_path))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shards", [2, 3])
def test_shards(rule: str, shards: int, tmp_path: Path) -> None:
    check(rule, run(rule, "lane", shards, tmp_path))


@pytest.mark.parametrize("wire_type", [WireType.BFLOAT16, WireType.INT4_BLOCK, WireType.SPARSE_BLOCK])
def test_narrow_wire_types(wire_type: WireType, tmp_path: Path) -> None:
    check(f"gem-{wire_type.name.lower()}", run("gem", "lane", 1, tmp_path, wire_type))


def test_a_run_that_is_killed_and_recovered(tmp_path: Path) -> None:
    """The server is killed after three rounds; one with --resume recovers them from log and checkpoint."""
    address = f"127.0.0.1:{free_port()}"
    eta = RULES["gem"]["eta"]
    command = [
        *(sys.executable, "-m", "gem_cli", "serve", "--bind", address, "--data-dir", str(tmp_path / "data")),
        *("--durability", "commit", "--order", "round-robin", "--min-workers", str(WORKERS), "--resume"),
        *("--eta", str(eta), "--checkpoint-commits", "4", "--exit-when-finished", "--steps", str(ROUNDS)),
    ]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            with training(address, "lane") as workers:
                train(workers, 3, eta)
                server.kill()
                server.wait()
                server = subprocess.Popen(command, stdout=log, stderr=log)
                for worker in workers:
                    worker.client.join()
                train(workers, ROUNDS - 3, eta)
                held = memoryview(bytearray(4 * MODEL.parameter_count + 8))
                assert workers[0].client.pull(held).clock == 1 + WORKERS * ROUNDS
                parameters = np.frombuffer(held, np.float32, MODEL.parameter_count)
        finally:
            server.kill()
            server.wait()
    check("gem-recovered", parameters)
