"""Wire types that change between two commits of a live session (session.proto, JoinRequest.delta_wire_types)."""

from typing import Any

import numpy as np
import pytest
from gem_worker.client import MisuseError, ServerRefusedError
from numpy.typing import NDArray

from gem_core.payload import PayloadFormat
from gem_core.wire_types import WireType, decode, encode
from tests.client.conftest import Connect, Serve
from tests.client.models import LARGE, SMALL, buffer, payload
from tests.client.real_server import begin
from tests.shards.group import MODEL, Group, Worker, serving

LADDER = (
    (WireType.BFLOAT16, WireType.BFLOAT16),
    (WireType.INT4_BLOCK, WireType.BFLOAT16),
    (WireType.INT4_BLOCK, WireType.INT4_BLOCK),
    (WireType.FLOAT32, WireType.FLOAT32),
)


def commit_in(worker: Worker, wires: tuple[WireType, WireType]) -> NDArray[np.float32]:
    """Commit one delta in these types; return what the server decodes of it."""
    values = np.frombuffer(worker.delta(), np.float32, MODEL.parameter_count)
    encoded = encode(wires[0], values)
    decoded = np.empty_like(values)
    decode(wires[0], encoded, decoded)
    delta = memoryview(bytes(encoded) + np.int64(worker.steps).tobytes())
    into = memoryview(bytearray(PayloadFormat(MODEL, wires[1].of_whole).byte_count))
    outcome = worker.client.commit(delta, into)
    assert (outcome.applied, outcome.verdict is not None) == (True, True)
    received = np.empty_like(values)
    if wires[1] is WireType.BFLOAT16:
        decode(WireType.BFLOAT16, into[: PayloadFormat(MODEL, wires[1]).parameter_bytes], received)
    else:
        received[:] = np.frombuffer(into, np.float32, received.size)
    worker.into = memoryview(received.tobytes() + bytes(8))
    return decoded


def settled(group: Group) -> set[tuple[WireType, WireType]]:
    """The wire types of the only session, on each shard."""

    def find(server: Any) -> tuple[WireType, WireType]:
        (session,) = server.server.sessions.live()
        return session.join_info.delta_wire_type, session.join_info.parameter_wire_type

    return {server.in_loop(lambda server=server: find(server)) for server in group.servers}


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("lane", [False, True], ids=["gRPC", "lane"])
def test_a_session_changes_its_wire_types_between_two_commits_and_goes_on(shards: int, lane: bool) -> None:
    with serving(shards, lane_port=0 if lane else -1) as group:
        worker = Worker(group.address, 0, of_client={"lane": lane})
        worker.begin()
        worker.pull()
        expected = worker.parameters
        expected += commit_in(worker, (WireType.FLOAT32, WireType.FLOAT32))
        for changes, wires in enumerate(LADDER, start=1):
            version = worker.client.version
            membership = worker.client.change_wire_types(*wires)
            assert membership.wire_types == wires
            assert settled(group) == {wires}
            assert worker.client.version == version
            for _ in range(2):
                expected += commit_in(worker, wires)
                np.testing.assert_array_equal(group.parameters(), expected)
            assert worker.client.transport == ("lane" if lane else "grpc")
            np.testing.assert_allclose(worker.parameters, expected, atol=0.05)
            assert worker.client.version is not None
            assert worker.client.version.clock == 2 + 2 * changes
        (session,) = group.servers[0].in_loop(group.servers[0].server.sessions.live)
        assert (session.worker.sessions, session.entry.last_applied) == (1, 1 + 2 * len(LADDER))
        worker.end()


def test_a_worker_whose_server_restarts_afterwards_joins_with_the_new_wire_types(
    serve: Serve, connect: Connect
) -> None:
    server = serve()
    client = connect(server.address, SMALL).client
    begin(client, SMALL)
    client.change_wire_types(WireType.BFLOAT16, WireType.BFLOAT16)
    again = server.again()
    into = memoryview(bytearray(2 * SMALL.parameter_count))
    try:
        client.initialize(payload(SMALL, 1.0))
        client.pull(into)
        assert client.commit(memoryview(bytes(2 * SMALL.parameter_count)), into).applied
        assert client.membership.wire_types == (WireType.BFLOAT16, WireType.BFLOAT16)
    finally:
        again.stop()


def test_no_memory_for_differences_refuses_at_once_and_changes_nothing(serve: Serve, connect: Connect) -> None:
    server = serve(staging_buffers=1)
    client = connect(server.address, LARGE).client
    into = begin(client, LARGE)
    server.in_loop(lambda: setattr(server.server.sessions.memory, "limit", server.server.sessions.memory.reserved))
    with pytest.raises(ServerRefusedError, match="choose --parameter-wire float32") as refused:
        client.change_wire_types(WireType.FLOAT32, WireType.INT4_BLOCK)
    assert refused.value.reason == "MEMORY"
    assert client.membership.wire_types == (WireType.FLOAT32, WireType.FLOAT32)
    assert client.commit(payload(LARGE, 0.0), into).applied
    assert client.change_wire_types(WireType.INT4_BLOCK, WireType.BFLOAT16).delta_wire_type is WireType.INT4_BLOCK


def test_wire_types_change_only_between_commits(serve: Serve, connect: Connect) -> None:
    server = serve()
    client = connect(server.address, SMALL).client
    client.join()
    with pytest.raises(MisuseError, match=r"pull\(\) first"):
        client.change_wire_types(WireType.BFLOAT16, WireType.BFLOAT16)


def test_a_round_trip_is_measured_while_the_server_answers(serve: Serve, connect: Connect) -> None:
    server = serve()
    client = connect(server.address, SMALL).client
    begin(client, SMALL)
    assert client.is_server_here
    found = client.round_trip()
    assert found is not None
    assert 0 < found < 5
    assert client.pull(buffer(SMALL)).clock == 1
    server.stop()
    assert client.round_trip() is None
