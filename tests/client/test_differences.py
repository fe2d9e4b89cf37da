"""Replies as differences: the worker holds what the server's copy says, whatever breaks, and that follows theta."""

import numpy as np
import pytest
from gem_worker.client import EventKind, ServerMisbehavedError
from gem_worker.client.differences import Differences
from gem_worker.client.messages import Version
from gem_worker.client.receive import ParametersReceiver
from gemps.v1 import transfer_pb2
from numpy.typing import NDArray

from gem_core.layout import Layout
from gem_core.payload import PayloadFormat
from gem_core.wire_types import COARSE, WireType
from tests.client.conftest import Connect, Proxied, Serve
from tests.client.models import LARGE, SMALL, buffer, byte_count, parameters_in
from tests.client.real_server import RealServer, begin

LANE = pytest.mark.parametrize("lane", [False, True], ids=["gRPC", "lane"])
TYPES = pytest.mark.parametrize("wire_type", sorted(COARSE))


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


@TYPES
@pytest.mark.parametrize("direction", ["to_server", "to_client"])
@pytest.mark.parametrize("layout", [SMALL, LARGE], ids=["whole", "chunked"])
def test_a_connection_cut_at_any_byte_leaves_worker_and_copy_equal(
    layout: Layout, direction: str, wire_type: WireType, serve: Serve, proxied: Proxied, connect: Connect
) -> None:
    server = serve(lane_port=-1)
    proxy = proxied(server)
    connected = connect(proxy.address, layout, parameter_wire_types=(wire_type,))
    client = connected.client
    into = begin(client, layout)
    cuts = range(0, 20_000, 811) if (layout, direction) == (LARGE, "to_server") else range(0, 3_600, 150)
    if layout is SMALL:
        cuts = range(0, 200, 8)
    for number, cut in enumerate(cuts, 1):
        proxy.cut_after(direction, cut)
        outcome = client.commit(delta(layout, number), into)
        proxy.disarm()
        assert outcome.applied
        assert outcome.version.clock == server.clock() == number + 1
        np.testing.assert_array_equal(copy_of(server), parameters_in(layout, into))
        np.testing.assert_allclose(parameters_in(layout, into), server.parameters(), atol=20)
    assert proxy.cuts >= 10
    assert EventKind.DELTA_DROPPED not in connected.kinds()


def test_with_overlap_differences_are_from_the_newest_reply(serve: Serve, connect: Connect) -> None:
    server = serve()
    client = connect(server.address, LARGE, overlap=True, parameter_wire_types=(WireType.INT4_BLOCK,)).client
    begin(client, LARGE)
    intos = [buffer(LARGE), buffer(LARGE)]
    for step in range(10):
        into = intos[step % 2]
        client.commit(delta(LARGE, step), into, base=client.bases[0])
        np.testing.assert_array_equal(copy_of(server), parameters_in(LARGE, into))


def test_a_restarted_server_sends_parameters_whole_first(serve: Serve, connect: Connect) -> None:
    server = serve()
    client = connect(server.address, LARGE, parameter_wire_types=(WireType.SPARSE_BLOCK,)).client
    into = begin(client, LARGE)
    client.commit(delta(LARGE, 1), into)
    server = server.again()
    try:
        server.in_loop(lambda: None)
        client.join()
        begin(client, LARGE)
        client.commit(delta(LARGE, 2), into)
        np.testing.assert_array_equal(copy_of(server), parameters_in(LARGE, into))
    finally:
        server.stop()


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


def test_a_difference_from_a_version_that_is_not_held_is_not_added() -> None:
    differences = Differences(PayloadFormat(SMALL, WireType.INT4_BLOCK))
    whole = buffer(SMALL)
    differences.hold_whole(whole, Version(7, 7))
    receiver = ParametersReceiver(PayloadFormat(SMALL, WireType.FLOAT32), whole, differences=differences)
    with pytest.raises(Exception, match=r"clock=8.*clock=7"):
        receiver.announce(header(WireType.INT4_BLOCK, Version(7, 8)))
    assert differences.version == Version(7, 7)
