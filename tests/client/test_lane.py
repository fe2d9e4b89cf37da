"""The lane at the worker's end: taken where it is this server's, else done without, at once; cut anywhere."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from gem_server.service.lane_port import LanePort
from gem_worker.client import Client, EventKind, lane_call
from gem_worker.client.commit_call import GrpcCall
from gem_worker.client.lane_call import LaneCall
from gemps.v1 import lane_pb2

from gem_core.layout import Layout
from tests.client.conftest import Connect, Connected, Proxied, Serve
from tests.client.cutting_proxy import CuttingProxy, Direction
from tests.client.models import LARGE, SMALL, parameters_in, payload
from tests.client.real_server import RealServer, begin
from tests.security.authority import Authority, replace


def lane_of(server: RealServer) -> LanePort:
    return server.server._lane_port


def calls(server: RealServer) -> int:
    """Those that run on the lane."""
    return server.in_loop(lambda: sum(one.task is not None for one in lane_of(server)._connections))


def tell(server: RealServer, port: int) -> None:
    """From now on the server names this one as its lane's."""
    server.in_loop(lambda: setattr(server.server._ports, "lane", port))


def is_on_lane(client: Client) -> bool:
    stream = client._session._stream
    assert stream is not None
    assert isinstance(stream._call, LaneCall | GrpcCall)
    return isinstance(stream._call, LaneCall)


def trains(client: Client, into: memoryview, layout: Layout = SMALL, *, from_: float = 0.0, steps: int = 3) -> None:
    for step in range(1, steps + 1):
        assert client.commit(payload(layout, 0.5), into).applied
        assert (parameters_in(layout, into) == from_ + 0.5 * step).all()


def direct_call_of(client: Client) -> DirectCall:
    call = client._session._calls._direct
    assert call is not None
    return call


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def test_commits_go_to_the_port_that_the_server_tells(serve: Serve, connect: Connect) -> None:
    server = serve()
    client = connect(server.address, LARGE).client
    into = begin(client, LARGE)
    assert calls(server) == 0
    trains(client, into, LARGE)
    assert calls(server) == 1
    assert direct_call_of(client).missed is None
    client.close()
    server.until(lambda: not commit_port_of(server)._connections)


def test_with_a_token_too(serve: Serve, connect: Connect, tmp_path: Path) -> None:
    server = serve(tokens=replace(tmp_path / "tokens", f"worker {'x' * 24}\n"))
    client = connect(server.address, SMALL, token="x" * 24).client
    trains(client, begin(client, SMALL))
    assert calls(server) == 1


def test_both_ways_give_the_same(serve: Serve, connect: Connect) -> None:
    """Workers at either port, in turns."""
    server = serve()
    one = connect(server.address, LARGE, name="one").client
    other = connect(server.address, LARGE, name="other", direct=False).client
    held = [begin(client, LARGE) for client in (one, other)]
    for step in range(6):
        client, into = (one, other)[step % 2], held[step % 2]
        assert client.commit(payload(LARGE, 0.5), into).applied
        assert (parameters_in(LARGE, into) == 0.5 * (step + 1)).all()
    assert calls(server) == 1


# -- where it leads nowhere --------------------------------------------------------------------------------------------

Listen = Callable[[socket.socket], None]


@contextmanager
def somebody(says: Listen) -> Iterator[int]:
    """A port where each connection gets this answer; it stays open until the end."""
    taken: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            taken.append(connection)
            with suppress(OSError):
                says(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    for connection in taken:
        connection.close()


def silent(_: socket.socket) -> None:
    """Not a word."""


def hangs_up(connection: socket.socket) -> None:
    connection.close()


def speaks_http1(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def pings_for_ever(connection: socket.socket) -> None:
    """Each a sign of life, and none of them an answer."""
    while True:
        connection.sendall(frame(PING, 0, 0, bytes(8)))
        if not connection.recv(1 << 16):
            return


def speaks_huffman(connection: socket.socket) -> None:
    connection.sendall(frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, b"\x88\x40\x01a\x81\xff"))


def accepts_everything(connection: socket.socket) -> None:
    """As a server of gRPC's that begins each call's answer at once."""
    block = write_headers(((":status", "200"), ("content-type", "application/grpc")))
    connection.sendall(frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, block))


def is_another_server(connection: socket.socket) -> None:
    block = write_headers(((":status", "200"), ("content-type", "application/grpc"), ("gemps-incarnation", "1")))
    connection.sendall(frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, block))


def falls_back(connected: Connected, server: RealServer) -> None:
    """The ordinary port is taken within the first commit, and by those that follow; nobody has to be told."""
    client = connected.client
    into = begin(client, SMALL)
    trains(client, into)
    call = direct_call_of(client)
    assert call.missed is not None
    assert calls(server) == 0
    assert connected.kinds() == []
    assert server.clock() == 4
    # The call after that does not try it again.
    call.close()
    trains(client, into, from_=1.5)
    assert direct_call_of(client) is not call
    assert direct_call_of(client).missed is None
    assert calls(server) == 0


@pytest.mark.parametrize(
    "says",
    [
        silent,
        hangs_up,
        speaks_http1,
        pings_for_ever,
        speaks_huffman,
        accepts_everything,
        is_another_server,
    ],
)
def test_what_does_not_answer_as_this_server_is_done_without(
    says: Listen, serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    if says in (silent, pings_for_ever):
        monkeypatch.setattr(direct_call, "_SHORTCUT_ANSWER", 0.2)
    server = serve()
    with somebody(says) as port:
        tell(server, port)
        falls_back(connect(server.address, SMALL), server)


def test_a_closed_port_is_done_without(serve: Serve, connect: Connect) -> None:
    server = serve()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    tell(server, port)
    falls_back(connect(server.address, SMALL), server)


@pytest.mark.parametrize("which", ["commit port", "ordinary port"])
def test_another_servers_port_is_done_without(which: str, serve: Serve, connect: Connect) -> None:
    server, other = serve(), serve()
    tell(server, commit_port_of(other).port if which == "commit port" else other.port)
    falls_back(connect(server.address, SMALL), server)
    assert other.clock() == 0


def test_behind_a_forwarded_port_it_is_not_tried(serve: Serve, connect: Connect, proxied: Proxied) -> None:
    """Whatever listens at that number there is none of the server's."""
    server = serve()
    reached = threading.Event()
    with somebody(lambda _: reached.set()) as port:
        tell(server, port)
        client = connect(proxied(server).address, SMALL).client
        trains(client, begin(client, SMALL))
    assert not reached.is_set()
    assert direct_call_of(client).missed is None


@pytest.mark.parametrize(
    ("of_server", "of_client"),
    [({"commit_port": -1}, {}), ({}, {"direct": False})],
    ids=["the server has none", "the worker must not"],
)
def test_where_it_is_not_wanted_it_is_not_used(
    of_server: dict[str, int], of_client: dict[str, bool], serve: Serve, connect: Connect
) -> None:
    server = serve(**of_server)
    connected = connect(server.address, LARGE, **of_client)
    trains(connected.client, begin(connected.client, LARGE), LARGE)
    assert calls(server) == 0
    assert bool(commit_port_of(server).port) == (not of_server)
    assert connected.kinds() == []


# -- where it comes and goes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missed", [False, True], ids=["after one that was used", "after one that led nowhere"])
def test_the_next_servers_port_is_found(missed: bool, serve: Serve, connect: Connect, tmp_path: Path) -> None:
    server = serve(data_dir=tmp_path)
    if missed:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            tell(server, listener.getsockname()[1])
    client = connect(server.address, SMALL).client
    into = begin(client, SMALL)
    trains(client, into)
    assert calls(server) == (0 if missed else 1)
    direct_call_of(client).close()  # gRPC's server waits some seconds for a caller who does not read to say good-bye
    following = server.again(resume=True)
    try:
        outcome = client.commit(payload(SMALL, 0.5), into)  # dropped, or applied: it joins anew
        assert outcome.version.clock >= 4
        before = parameters_in(SMALL, into)[0]
        trains(client, into, from_=before)
        assert calls(following) == 1
    finally:
        following.stop()


class Torn:
    """A worker whose commits go through a proxy to the commit port, and all else straight to the server."""

    def __init__(self, server: RealServer, connected: Connected, proxy: CuttingProxy, layout: Layout) -> None:
        self.server, self.connected, self.proxy, self.layout = server, connected, proxy, layout
        tell(server, port_of(proxy.address))
        self.into = begin(connected.client, layout)

    def commits(self, number: int) -> None:
        """The so-many-th commit counts once."""
        outcome = self.connected.client.commit(payload(self.layout, 0.5), self.into)
        assert outcome.applied
        assert self.server.clock() == outcome.version.clock == number + 1
        assert (parameters_in(self.layout, self.into) == 0.5 * number).all()


@pytest.fixture
def torn(serve: Serve, connect: Connect) -> Iterator[Callable[[Layout], Torn]]:
    proxies: list[CuttingProxy] = []

    def make(layout: Layout) -> Torn:
        server = serve()
        proxies.append(CuttingProxy(commit_port_of(server).port))
        return Torn(server, connect(server.address, layout), proxies[-1], layout)

    yield make
    for proxy in proxies:
        proxy.close()


@pytest.mark.parametrize(
    ("layout", "direction", "cuts"),
    [
        # HTTP/2 headers, the commit's header, its payload, the end; replies likewise.
        pytest.param(SMALL, "to_server", range(0, 160, 8), id="small-to-server"),
        pytest.param(SMALL, "to_client", range(0, 240, 8), id="small-to-client"),
        pytest.param(LARGE, "to_server", range(0, 101_000, 7_282), id="large-to-server"),
        pytest.param(LARGE, "to_client", range(0, 101_000, 7_282), id="large-to-client"),
    ],
)
def test_a_commit_port_that_dies_at_any_byte_of_a_commit_loses_and_doubles_nothing(
    layout: Layout, direction: Direction, cuts: range, torn: Callable[[Layout], Torn]
) -> None:
    one = torn(layout)
    for number, cut in enumerate(cuts, 1):
        one.proxy.cut_after(direction, cut)
        one.commits(number)
        one.proxy.disarm()
        call = direct_call_of(one.connected.client)
        if call.missed is not None:  # it was cut before the call was accepted: as if the server told it anew
            call.missed = None
            call.close()
    assert one.proxy.cuts >= 10
    assert one.proxy.connections >= 10
    assert EventKind.DELTA_DROPPED not in one.connected.kinds()


def test_a_commit_port_that_goes_for_good_is_done_without(torn: Callable[[Layout], Torn]) -> None:
    one = torn(LARGE)
    one.commits(1)
    assert calls(one.server) == 1
    one.proxy.cut_after("to_server", 50_000)
    one.proxy._listener.shutdown(socket.SHUT_RDWR)
    one.commits(2)
    one.commits(3)
    assert one.proxy.cuts == 1
    assert calls(one.server) == 0
    assert direct_call_of(one.connected.client).missed is not None
