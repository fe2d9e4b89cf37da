"""Becoming a worker: what Join settles, servers that are not there yet, and calls in the wrong order."""

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
from gem_worker.client import (
    AddressError,
    Client,
    EventKind,
    MisuseError,
    NotInitializedError,
    RunState,
    ServerMisbehavedError,
    ServerRefusedError,
    ServerUnavailableError,
)
from gem_worker.client.channel import check_address
from gem_worker.client.messages import recipe_to_wire
from gemps.v1 import run_pb2

from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec
from gem_core.recipe import Recipe, RecipeKind
from gem_core.wire_types import WireType
from tests.client.conftest import Connect, Script
from tests.client.models import LARGE, SMALL, buffer, byte_count, payload
from tests.client.scripted_server import refuse, tear

ADAMW = Recipe(RecipeKind.RMS, "AdamW", ({"lr": 0.001, "beta2": 0.99}, {"lr": 0.01, "beta2": 0.9}), (0, 1))


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_join_tells_what_the_server_settled(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    client = connect(server.address, SMALL).client
    membership = client.join()
    assert membership == client.membership
    assert membership.run_settings.rule == "downpour"
    assert membership.run_settings.order == "fifo"
    assert membership.delta_wire_type is WireType.FLOAT32
    assert membership.has_parameters
    assert membership.run_state is client.run_state is RunState.TRAINING
    assert client.next_eta == 0.1
    assert client.version is None


def test_join_sends_the_recipe_and_tells_the_runs_and_how_far_it_is(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    server.recipe, server.progress = recipe_to_wire(ADAMW), 12.5
    membership = connect(server.address, SMALL, recipe=ADAMW).client.join()
    assert membership.run_settings.recipe == ADAMW
    assert membership.progress == 12.5


def test_a_recipe_that_the_worker_did_not_offer_is_a_mistake_of_the_server(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    server.recipe = recipe_to_wire(ADAMW)
    with pytest.raises(ServerMisbehavedError, match="another recipe"):
        connect(server.address, SMALL).client.join()


def test_a_recipe_that_is_not_legal_is_a_mistake_of_the_server(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    server.recipe = run_pb2.Recipe(kind="magic", optimizer="AdamW", groups=[run_pb2.RecipeGroup()])
    with pytest.raises(ServerMisbehavedError, match="magic"):
        connect(server.address, SMALL, recipe=ADAMW).client.join()


def test_a_worker_does_not_go_on_under_another_recipe(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    server.recipe = recipe_to_wire(ADAMW)
    client = connect(server.address, SMALL, recipe=ADAMW).client
    client.join()
    server.recipe = None
    with pytest.raises(ServerMisbehavedError, match="recipe"):
        client.join()


def test_an_order_that_a_newer_server_serves_in_is_shown_by_its_number(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    server.order = 99  # type: ignore[assignment]
    assert connect(server.address, SMALL).client.join().run_settings.order == "99"


def test_join_waits_for_a_server_that_is_not_there_yet_and_says_so_once(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    server.stop()
    attempts: list[float] = []

    def start_on_the_third_attempt(seconds: float) -> None:
        attempts.append(seconds)
        if len(attempts) == 3:
            server.start()

    connected = connect(server.address, SMALL, sleep=start_on_the_third_attempt)
    connected.client.join()
    assert len(attempts) >= 3
    assert connected.kinds() == [EventKind.WAITING_FOR_SERVER, EventKind.CONNECTION_BACK]
    assert server.address in connected.events[0].message


def test_join_gives_up_with_the_address_and_what_to_check(connect: Connect) -> None:
    port = free_port()
    connected = connect(f"127.0.0.1:{port}", SMALL, connect_timeout=0.1)
    with pytest.raises(ServerUnavailableError, match=rf"127\.0\.0\.1:{port}.*gemps serve"):
        connected.client.join()


def test_join_of_something_that_is_no_gemps_server_says_so(connect: Connect) -> None:
    other = grpc.server(ThreadPoolExecutor(1))
    port = other.add_insecure_port("127.0.0.1:0")
    other.start()
    try:
        with pytest.raises(ServerRefusedError, match="which spoke a draft, or no gemps server"):
            connect(f"127.0.0.1:{port}", SMALL).client.join()
    finally:
        other.stop(0).wait()


def test_join_refused_for_another_model_names_the_reason(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    server.at("join", refuse(grpc.StatusCode.FAILED_PRECONDITION, "LAYOUT_MISMATCH"))
    with pytest.raises(ServerRefusedError, match="LAYOUT_MISMATCH"):
        connect(server.address, SMALL).client.join()


@pytest.mark.parametrize("chunk_bytes", [0, 3, (2 << 20) + 1])
def test_impossible_chunk_size_is_refused_by_the_client(chunk_bytes: int, script: Script, connect: Connect) -> None:
    server = script(SMALL)
    server.chunk_bytes = chunk_bytes
    with pytest.raises(ServerMisbehavedError, match="chunks"):
        connect(server.address, SMALL).client.join()


@pytest.mark.parametrize("layout", [SMALL, LARGE], ids=["one message", "several"])
@pytest.mark.parametrize("has_parameters", [True, False])
def test_first_parameters_are_uploaded_once(
    has_parameters: bool, layout: Layout, script: Script, connect: Connect
) -> None:
    server = script(layout)
    if not has_parameters:
        server.theta, server.clock = None, 0
    client = connect(server.address, layout).client
    assert client.join().has_parameters is has_parameters
    assert client.initialize(payload(layout, 1.0)) is not has_parameters
    assert server.theta is not None
    np.testing.assert_array_equal(server.theta, np.float32(not has_parameters))


@pytest.mark.parametrize("point", ["initialize", "initialized"])
def test_torn_upload_is_repeated(point: str, script: Script, connect: Connect) -> None:
    server = script(LARGE)
    server.theta, server.clock = None, 0
    client = connect(server.address, LARGE).client
    client.join()
    server.at(point, tear)
    accepted = client.initialize(payload(LARGE, 1.0))
    # When only the answer was lost, the repeat finds the first upload there.
    assert accepted is (point == "initialize")
    assert server.theta is not None
    assert server.theta[0] == 1


@pytest.mark.parametrize("chunk", range(4))
def test_torn_pull_is_resumed_at_the_chunk_it_was_torn_at(chunk: int, script: Script, connect: Connect) -> None:
    server = script(LARGE)
    client = connect(server.address, LARGE).client
    client.join()
    server.at("pull-chunk", *[lambda: None] * chunk, tear)
    into = buffer(LARGE)
    client.pull(into)
    assert bytes(into) == bytes(server.state())
    assert [pull.resume_offset for pull in server.pulls] == [0, chunk * server.chunk_bytes]
    assert server.pulls[1].HasField("resume_version") is (chunk > 0)


def test_pull_that_gets_further_each_time_is_not_given_up(script: Script, connect: Connect) -> None:
    server = script(LARGE)
    server.chunk_bytes = 8 << 10
    # Every pause takes most of the patience.
    now = [0.0]
    sleep = lambda _: now.append(now.pop() + 40.0)  # noqa: E731
    client = connect(server.address, LARGE, clock=lambda: now[0], sleep=sleep).client
    client.join()
    server.at("pull-chunk", *[lambda: None, tear] * 10)
    into = buffer(LARGE)
    client.pull(into)
    assert bytes(into) == bytes(server.state())


def test_pull_without_parameters_names_the_fix(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    server.theta = None
    client = connect(server.address, SMALL).client
    client.join()
    with pytest.raises(NotInitializedError, match="initialize"):
        client.pull(buffer(SMALL))


def test_calls_in_the_wrong_order_name_the_right_one(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    client = connect(server.address, SMALL).client
    for call in (
        lambda: client.pull(buffer(SMALL)),
        lambda: client.initialize(payload(SMALL, 1.0)),
        lambda: client.commit(payload(SMALL, 1.0), buffer(SMALL)),
        lambda: client.membership,
    ):
        with pytest.raises(MisuseError, match=r"join\(\) first"):
            call()
    client.join()
    with pytest.raises(MisuseError, match=r"pull\(\) first"):
        client.commit(payload(SMALL, 1.0), buffer(SMALL))
    client.close()
    with pytest.raises(MisuseError, match="closed"):
        client.join()
    client.close()


def test_buffers_of_the_wrong_size_or_kind_are_refused_before_anything_is_sent(
    script: Script, connect: Connect
) -> None:
    server = script(SMALL)
    client = connect(server.address, SMALL).client
    client.join()
    client.pull(buffer(SMALL))
    with pytest.raises(ValueError, match="has 4 bytes"):
        client.commit(memoryview(bytes(4)), buffer(SMALL))
    with pytest.raises(ValueError, match="has 4 bytes"):
        client.pull(memoryview(bytearray(4)))
    with pytest.raises(ValueError, match="writable"):
        client.pull(memoryview(bytes(byte_count(SMALL))))
    with pytest.raises(ValueError, match="contiguous"):
        client.commit(np.zeros(16, np.float32).data[::2], buffer(SMALL))
    assert server.headers == []


def test_any_contiguous_buffer_will_do(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    client = connect(server.address, SMALL).client
    client.join()
    into = np.empty((2, 4), np.float32)
    client.pull(into.data)
    client.commit(np.full((4, 2), 0.5, np.float32).data, into.data)
    np.testing.assert_array_equal(into, np.float32(0.5))


def test_leaving_tells_the_server_why_and_never_raises(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    with connect(server.address, SMALL).client as client:
        client.join()
    assert server.calls[-1] == "Leave done"
    connected = connect(server.address, SMALL, leave_timeout=0.5)
    connected.client.join()
    server.stop()
    connected.client.leave("x" * 1000)
    assert connected.kinds() == [EventKind.NOT_LEFT]


def test_leaving_by_an_exception_names_it(script: Script, connect: Connect) -> None:
    server = script(SMALL)

    def work() -> None:
        with connect(server.address, SMALL).client as client:
            client.join()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert server.calls[-1] == "Leave ZeroDivisionError"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_use_after_a_fork_is_refused_and_names_the_fix(script: Script, connect: Connect, tmp_path: Path) -> None:
    server = script(SMALL)
    client = connect(server.address, SMALL).client
    client.join()
    said = tmp_path / "said"
    child = os.fork()
    if child == 0:
        try:
            client.pull(buffer(SMALL))
        except MisuseError as error:
            said.write_text(str(error))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert "spawn" in said.read_text()
    client.pull(buffer(SMALL))


@pytest.mark.parametrize(
    ("address", "fix"),
    [
        ("http://localhost:50051", "leave out 'http://'"),
        ("grpc+tls://host:1", "leave out 'grpc[+]tls://'"),
        ("localhost", "localhost:50051"),
        ("", "localhost:50051"),
        ("::1", r"\[::1\]:50051"),
        ("fe80::1:50051", r"\[fe80::1:50051\]:50051"),
        (":50051", "HOST:PORT"),
        ("my host:50051", "HOST:PORT"),
        ("host/path:50051", "HOST:PORT"),
        ("localhost:http", "not a number"),
        ("localhost:0", "1 to 65535"),
        ("localhost:65536", "1 to 65535"),
    ],
)
def test_address_that_cannot_be_understood_is_refused_with_the_fix(address: str, fix: str) -> None:
    with pytest.raises(AddressError, match=fix):
        Client(address, worker_name="worker", layout=SMALL)


@pytest.mark.parametrize("address", ["localhost:50051", "10.0.0.7:1", "[::1]:65535", "gemps_server:80", "unix:/tmp/s"])
def test_usual_addresses_are_accepted(address: str) -> None:
    assert check_address(address) == address


def test_layout_too_large_for_a_message_is_refused_before_anything_is_sent() -> None:
    layout = Layout(
        TensorSpec(f"{index:01000}", (1,), ElementType.FLOAT32, TensorKind.PARAMETER) for index in range(2500)
    )
    with pytest.raises(MisuseError, match="shorten the tensors' names"):
        Client("localhost:50051", worker_name="worker", layout=layout)
