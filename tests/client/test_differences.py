"""Replies as differences: the worker holds what the server's copy says, whatever breaks, and that follows theta."""

import numpy as np
import pytest
from gem_worker.client import EventKind, NotInitializedError, ServerMisbehavedError
from gem_worker.client.messages import Version
from gem_worker.client.receive import ParametersReceiver
from gemps.v1 import transfer_pb2
from numpy.typing import NDArray

from gem_core.layout import Layout
from gem_core.payload import PayloadFormat
from gem_core.wire_types import BLOCKS, WireType
from tests.client.conftest import Connect, Proxied, Serve
from tests.client.models import LARGE, SMALL, buffer, byte_count, parameters_in
from tests.client.real_server import RealServer, begin
from tests.shards.group import Worker, serving

LANE = pytest.mark.parametrize("lane", [False, True], ids=["gRPC", "lane"])
TYPES = pytest.mark.parametrize("wire_type", sorted(BLOCKS))


def delta(layout: Layout, seed: int) -> memoryview:
    values = np.random.default_rng(seed).normal(size=layout.parameter_count).astype(np.float32)
    return memoryview(values.tobytes().ljust(byte_count(layout), b"\0"))


def copy_of(server: RealServer) -> NDArray[np.float32]:
    """What the server takes its worker to hold."""

    def find() -> NDArray[np.float32]:
        (session,) = server.server.sessions.live()
        assert session.copy is not None
        return session.copy.values.copy()

    return server.in_loop(find)


@TYPES
@LANE
def test_replies_are_differences_that_follow_theta(
    wire_type: WireType, lane: bool, serve: Serve, connect: Connect
) -> None:
    server = serve(lane_port=0 if lane else -1)
    client = connect(server.address, LARGE, parameter_wire_types=(wire_type,), lane=lane).client
    into = begin(client, LARGE)
    for step in range(1, 30):
        outcome = client.commit(delta(LARGE, step), into)
        assert outcome.version.clock == step + 1
        np.testing.assert_array_equal(copy_of(server), parameters_in(LARGE, into))
    expected = byte_count(LARGE) + 29 * PayloadFormat(LARGE, wire_type).byte_count
    server.until(lambda: server.server.sessions.live_workers()[0].telemetry.bytes_sent == expected)
    # Nothing new: the last differences bring what the earlier ones left out.
    for _ in range(60):
        client.commit(memoryview(bytes(byte_count(LARGE))), into)
    np.testing.assert_allclose(parameters_in(LARGE, into), server.parameters(), atol=1e-3)
    assert client.pull(into).clock == 90
    np.testing.assert_array_equal(parameters_in(LARGE, into), server.parameters())


@pytest.mark.parametrize("direction", ["to_server", "to_client"])
@pytest.mark.parametrize(
    ("layout", "wire_type", "last", "step"),
    [
        (SMALL, WireType.INT4_BLOCK, 200, 8),
        (LARGE, WireType.INT4_BLOCK, 13_000, 501),  # four chunks
        (LARGE, WireType.SPARSE_BLOCK, 7_000, 301),
    ],
)
def test_a_connection_cut_at_any_byte_leaves_worker_and_copy_equal(
    layout: Layout,
    wire_type: WireType,
    last: int,
    step: int,
    direction: str,
    serve: Serve,
    proxied: Proxied,
    connect: Connect,
) -> None:
    """Every other time the pull that follows is cut as well."""
    server = serve(chunk_bytes=4096, lane_port=-1)
    proxy = proxied(server)
    connected = connect(proxy.address, layout, parameter_wire_types=(wire_type,))
    client = connected.client
    into = begin(client, layout)
    for number, cut in enumerate(range(0, last, step), 1):
        proxy.cut_after(direction, cut)
        if number % 2 == 0:
            proxy.cut_after(direction, 4 * cut)
        outcome = client.commit(delta(layout, number), into)
        proxy.disarm()
        assert outcome.applied
        assert outcome.version.clock == server.clock() == number + 1
        np.testing.assert_array_equal(copy_of(server), parameters_in(layout, into))
        np.testing.assert_allclose(parameters_in(layout, into), server.parameters(), atol=20)
    assert proxy.cuts >= 10
    assert EventKind.DELTA_DROPPED not in connected.kinds()


def test_a_restarted_server_sends_parameters_whole_first(serve: Serve, connect: Connect) -> None:
    server = serve()
    connected = connect(server.address, LARGE, parameter_wire_types=(WireType.SPARSE_BLOCK,))
    client = connected.client
    into = begin(client, LARGE)
    client.commit(delta(LARGE, 1), into)
    server = server.again()
    try:
        with pytest.raises(NotInitializedError):
            client.commit(delta(LARGE, 2), into)
        client.initialize(delta(LARGE, 3))
        client.pull(into)
        np.testing.assert_array_equal(parameters_in(LARGE, into), server.parameters())
        client.commit(delta(LARGE, 4), into)
        np.testing.assert_array_equal(copy_of(server), parameters_in(LARGE, into))
    finally:
        server.stop()


def test_a_repeat_into_another_buffer_brings_parameters_whole(serve: Serve, proxied: Proxied, connect: Connect) -> None:
    server = serve(lane_port=-1)
    proxy = proxied(server)
    client = connect(proxy.address, LARGE, parameter_wire_types=(WireType.INT4_BLOCK,)).client
    begin(client, LARGE)
    intos = [buffer(LARGE), buffer(LARGE)]
    for step in range(12):
        into = intos[step % 2]
        proxy.cut_after("to_client", 700 * step)
        outcome = client.commit(delta(LARGE, step), into)
        proxy.disarm()
        assert outcome.applied
        np.testing.assert_array_equal(copy_of(server), parameters_in(LARGE, into))
    assert proxy.cuts >= 6


def header(wire_type: WireType, base: Version | None) -> transfer_pb2.ParametersHeader:
    return transfer_pb2.ParametersHeader(
        version=Version(7, 9).to_wire(),
        wire_type=int(wire_type),
        byte_count=PayloadFormat(SMALL, wire_type).byte_count,
        layout_digest=SMALL.digest,
        base_version=None if base is None else base.to_wire(),
    )


def test_a_difference_that_nobody_asked_for_is_misbehaviour() -> None:
    receiver = ParametersReceiver(PayloadFormat(SMALL, WireType.FLOAT32), buffer(SMALL))
    with pytest.raises(ServerMisbehavedError, match="not asked for"):
        receiver.announce(header(WireType.INT4_BLOCK, Version(7, 8)))


def test_a_difference_from_a_version_that_is_not_held_is_replaced_by_a_pull(serve: Serve, connect: Connect) -> None:
    server = serve()
    client = connect(server.address, LARGE, parameter_wire_types=(WireType.INT4_BLOCK,)).client
    into = begin(client, LARGE)

    def mistake_the_version() -> None:
        (session,) = server.server.sessions.live()
        assert session.copy is not None
        assert session.copy.version is not None
        session.copy.version = session.copy.version._replace(clock=77)
        session.copy.values += 5

    client.commit(delta(LARGE, 1), into)
    server.in_loop(mistake_the_version)
    outcome = client.commit(delta(LARGE, 2), into)
    assert outcome.applied
    np.testing.assert_array_equal(parameters_in(LARGE, into), server.parameters())
    client.commit(delta(LARGE, 3), into)
    np.testing.assert_array_equal(copy_of(server), parameters_in(LARGE, into))


def test_each_shard_sends_its_difference() -> None:
    with serving(2, rule="downpour") as group:
        worker = Worker(group.address, 0, parameter_wire_types=(WireType.INT4_BLOCK,))
        worker.begin()
        worker.pull()
        for _ in range(10):
            assert worker.commit().applied
            copies = np.concatenate([copy_of(server) for server in group.servers])
            np.testing.assert_array_equal(copies, worker.parameters)
        np.testing.assert_allclose(copies, group.parameters(), atol=0.1)
        assert not np.array_equal(copies, group.parameters())
        worker.end()
