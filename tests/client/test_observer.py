"""What can be seen and done without being a worker, against the real server."""

import base64
import json
import math
import threading
from pathlib import Path

import numpy as np
import pytest
from gem_worker.client import (
    AddressError,
    NotInitializedError,
    Observer,
    RunState,
    ServerRefusedError,
    ServerUnavailableError,
    Version,
)
from gemps.plain_values import to_dict
from gemps.v1 import status_pb2
from google.protobuf.json_format import MessageToDict

from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec
from gem_core.wire_types import WireType
from tests.client.conftest import Connect, Serve
from tests.client.cutting_proxy import CuttingProxy
from tests.client.models import LARGE, SMALL, buffer, payload
from tests.client.real_server import RealServer


def train(server: RealServer, connect: Connect, commits: int = 1) -> Version:
    client = connect(server.address, LARGE).client
    client.join()
    client.initialize(payload(LARGE, 0.0))
    into = buffer(LARGE)
    version = client.pull(into)
    for _ in range(commits):
        version = client.commit(payload(LARGE, 1.0), into, loss=0.5).version
    return version


def test_status_of_a_run_has_numbers_as_numbers_and_no_session_ids(serve: Serve, connect: Connect) -> None:
    server = serve(seed=3)
    version = train(server, connect)
    with Observer(server.address) as observer:
        status = observer.get_status()
    assert status["version"] == {"incarnation": version.incarnation, "clock": 2}
    assert status["run_state"] == "RUN_STATE_TRAINING"
    assert status["settings"]["rule"] == "downpour"
    assert status["settings"]["seed"] == 3
    assert status["parameter_count"] == 25_000
    assert status["loss"] == 0.5
    (worker,) = status["workers"]
    assert worker["name"] == "worker"
    assert worker["commits"] == 1
    assert "session_id" not in json.dumps(status)


def test_status_is_protobufs_json_mapping_but_for_numbers() -> None:
    status = status_pb2.RunStatus(layout_digest=b"\x00\xff", loss=math.nan, staleness_mean=math.inf, commits=1 << 60)
    status.settings.rule_settings["kappa"] = 2.0
    status.workers.add(name="worker", bytes_received=1 << 50)
    report = to_dict(status)
    mapping = MessageToDict(status, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    assert report.keys() == mapping.keys()
    assert report["layout_digest"] == base64.b64encode(b"\x00\xff").decode()
    assert math.isnan(report["loss"])
    assert report["staleness_mean"] == math.inf
    assert report["commits"] == 1 << 60
    assert report["settings"]["rule_settings"] == {"kappa": 2.0}
    assert report["workers"][0]["bytes_received"] == 1 << 50
    assert "loss" not in report["workers"][0]


def test_watching_ends_when_the_run_is_finished_and_everybody_left(serve: Serve, connect: Connect) -> None:
    server = serve(steps=1)
    seen: list[str] = []
    started = threading.Event()

    def watch() -> None:
        with Observer(server.address) as observer:
            for status in observer.watch_status(0.1):
                seen.append(status["run_state"])
                started.set()

    watching = threading.Thread(target=watch)
    watching.start()
    assert started.wait(60)
    client = connect(server.address, LARGE).client
    client.join()
    client.initialize(payload(LARGE, 0.0))
    client.pull(buffer(LARGE))
    client.commit(payload(LARGE, 1.0), buffer(LARGE))
    client.leave("finished")
    watching.join()
    assert seen[0] == "RUN_STATE_WAITING"
    assert seen[-1] == "RUN_STATE_FINISHED"


def test_watching_goes_on_over_a_cut_connection(serve: Serve) -> None:
    server = serve()
    proxy = CuttingProxy(server.port)
    try:
        with Observer(proxy.address, wait=60, on_event=lambda _: None) as observer:
            watching = observer.watch_status(0.1)
            next(watching)
            proxy.cut_after("to_client", 0)
            for _ in range(3):
                next(watching)
            assert proxy.connections == 2
            watching.close()
    finally:
        proxy.close()


@pytest.mark.parametrize("wire_type", [WireType.FLOAT32, WireType.BFLOAT16])
def test_parameters_come_with_their_layout(wire_type: WireType, serve: Serve, connect: Connect) -> None:
    server = serve()
    version = train(server, connect, commits=2)
    with Observer(server.address) as observer:
        pulled = observer.pull(wire_type=wire_type)
        assert pulled is not None
        assert pulled.version == version
        assert pulled.layout == LARGE
        size = 4 if wire_type is WireType.FLOAT32 else 2
        assert len(pulled.payload) == 25_000 * size + 8
        if wire_type is WireType.FLOAT32:
            np.testing.assert_array_equal(np.frombuffer(pulled.payload, np.float32, 25_000), np.float32(2))
        assert observer.pull(known_version=version) is None


def test_pull_torn_on_the_way_starts_over(serve: Serve, connect: Connect) -> None:
    server = serve()
    train(server, connect)
    proxy = CuttingProxy(server.port)
    try:
        with Observer(proxy.address, wait=60, on_event=lambda _: None) as observer:
            proxy.cut_after("to_client", 50_000)
            pulled = observer.pull()
        assert pulled is not None
        assert (np.frombuffer(pulled.payload, np.float32, 25_000) == 1).all()
        assert proxy.cuts == 1
    finally:
        proxy.close()


def test_pull_before_there_are_parameters_is_refused(serve: Serve) -> None:
    with Observer(serve().address) as observer, pytest.raises(NotInitializedError):
        observer.pull()


def test_evaluations_are_compared(serve: Serve, connect: Connect) -> None:
    server = serve()
    version = train(server, connect)
    with Observer(server.address) as observer:
        assert observer.report_evaluation(version, loss=1.0, accuracy=0.5, samples=10, evaluator="me")
        assert not observer.report_evaluation(version, loss=1.0, accuracy=0.25, samples=10, bits_per_character=1.5)
        status = observer.get_status()
    assert status["best_evaluation"]["accuracy"] == 0.5
    assert status["best_evaluation"]["evaluator"] == "me"
    assert status["last_evaluation"]["accuracy"] == 0.25
    assert status["last_evaluation"]["bits_per_character"] == 1.5


def test_operator_writes_a_checkpoint_and_finishes_the_run(serve: Serve, connect: Connect, tmp_path: Path) -> None:
    server = serve(data_dir=tmp_path)
    version = train(server, connect)
    with Observer(server.address) as observer:
        written = observer.control("checkpoint", "before lunch")
        assert written.version == version
        assert (Path(written.checkpoint_path) / "model.safetensors").exists()
        assert observer.control("finish", "enough").run_state is RunState.FINISHED


def test_order_that_cannot_be_carried_out_is_refused(serve: Serve) -> None:
    with Observer(serve().address) as observer, pytest.raises(ServerRefusedError):
        observer.control("checkpoint", "there is nothing to write, and nowhere")


def test_server_that_is_not_there_is_one_error_with_the_fix() -> None:
    with Observer("127.0.0.1:1") as observer, pytest.raises(ServerUnavailableError, match="gemps serve"):
        observer.get_status()


def test_address_is_checked() -> None:
    with pytest.raises(AddressError, match="leave out"):
        Observer("http://localhost:50051")


def test_layout_of_many_frozen_tensors_and_an_adapter_are_received(serve: Serve, connect: Connect) -> None:
    frozen = [TensorSpec(f"f{i}", (9,), ElementType.INT8, TensorKind.FROZEN, sha256=bytes(32)) for i in range(4000)]
    layout = Layout([*SMALL.tensors, *frozen])
    server = serve()
    client = connect(server.address, layout).client
    client.join()
    client.initialize(payload(layout, 1.0), adapter=b"described")
    with Observer(server.address) as observer:
        pulled = observer.pull()
    assert pulled is not None
    assert (pulled.layout, pulled.adapter, len(pulled.payload)) == (layout, b"described", 32)
