"""The lane at the worker's end: taken where it is this server's, else done without, at once; cut anywhere."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from gem_worker.client import Client, ClientSettings, EventKind, channel, lane_call
from gem_worker.client.credentials import Credentials
from gemps.v1 import lane_pb2, session_pb2

from gem_core.layout import Layout
from tests.client.conftest import Connect, Connected, Proxied, Serve
from tests.client.cutting_proxy import CuttingProxy, Direction
from tests.client.models import LARGE, SMALL, parameters_in, payload
from tests.client.real_server import RealServer, begin
from tests.security.authority import Authority, replace


def authorizations(server: RealServer) -> list[str]:
    """Of the lane's connections."""
    return [value for one in server.server.lane.connections for _, value in one.invocation_metadata()]


def calls(server: RealServer) -> int:
    """Those that run on the lane."""
    return server.in_loop(lambda: sum(one.task is not None for one in server.server.lane.connections))


def tell(server: RealServer, port: int) -> None:
    """From now on the server names this one as its lane's."""
    server.in_loop(lambda: setattr(server.server.ports, "lane", port))


def trains(client: Client, into: memoryview, layout: Layout = SMALL, *, from_: float = 0.0, steps: int = 3) -> None:
    for step in range(1, steps + 1):
        assert client.commit(payload(layout, 0.5), into).applied
        assert (parameters_in(layout, into) == from_ + 0.5 * step).all()


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def test_commits_go_over_the_lane_that_the_server_tells(serve: Serve, connect: Connect) -> None:
    server = serve()
    client = connect(server.address, LARGE).client
    into = begin(client, LARGE)
    assert calls(server) == 0
    trains(client, into, LARGE)
    assert calls(server) == 1
    assert client.transport == "lane"
    client.close()
    server.until(lambda: not server.server.lane.connections)


def test_over_tls_too(serve: Serve, connect: Connect, tls: tuple[dict[str, Any], dict[str, Any]]) -> None:
    of_server, of_client = tls
    server = serve(**of_server)
    client = connect(server.address, LARGE, **of_client).client
    trains(client, begin(client, LARGE), LARGE)
    assert client.transport == "lane"


@pytest.fixture
def tls(tmp_path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of a server, and of its clients."""
    authority = Authority(tmp_path)
    certificate, key = authority.pair("server").write(tmp_path, "server")
    return {"tls_cert": certificate, "tls_key": key}, {"tls_ca": str(authority.file)}


def test_with_a_token_too_that_is_read_again_for_each_connection(
    serve: Serve, connect: Connect, tmp_path: Path
) -> None:
    first, second = "x" * 24, "y" * 24
    tokens, own = replace(tmp_path / "tokens", f"worker {first}\nworker {second}\n"), tmp_path / "token"
    replace(own, first)
    server = serve(tokens=tokens)
    client = connect(server.address, SMALL, token_file=str(own)).client
    into = begin(client, SMALL)
    trains(client, into)
    assert client.transport == "lane"
    assert server.in_loop(lambda: authorizations(server)) == [f"Bearer {first}"]
    replace(own, second)
    server.in_loop(lambda: [one.close() for one in server.server.lane.connections])
    trains(client, into, from_=1.5)
    assert client.transport == "lane"
    server.until(lambda: authorizations(server) == [f"Bearer {second}"])


def test_both_ways_give_the_same(serve: Serve, connect: Connect) -> None:
    """Workers over the lane and over gRPC, in turns."""
    server = serve()
    one = connect(server.address, LARGE, name="one").client
    other = connect(server.address, LARGE, name="other", lane=False).client
    held = [begin(client, LARGE) for client in (one, other)]
    for step in range(6):
        client, into = (one, other)[step % 2], held[step % 2]
        assert client.commit(payload(LARGE, 0.5), into).applied
        assert (parameters_in(LARGE, into) == 0.5 * (step + 1)).all()
    assert calls(server) == 1
    assert (one.transport, other.transport) == ("lane", "grpc")


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


def begins_a_giant_frame(connection: socket.socket) -> None:
    connection.sendall(b"\xff\xff\xff\xff\x02")


def is_another_server(connection: socket.socket) -> None:
    welcome = lane_pb2.LaneWelcome(incarnation=1).SerializeToString()
    connection.sendall(struct.pack("<IB", len(welcome), 2) + welcome)


def is_no_server(connection: socket.socket) -> None:
    connection.sendall(struct.pack("<IB", 3, 2) + b"\xff\xff\xff")


def falls_back(connected: Connected, server: RealServer) -> None:
    """Commits go over gRPC within the first one."""
    client = connected.client
    into = begin(client, SMALL)
    trains(client, into)
    assert client.transport == "grpc"
    assert calls(server) == 0
    assert connected.kinds() == []
    assert server.clock() == 4


@pytest.mark.parametrize(
    "says", [silent, hangs_up, speaks_http1, begins_a_giant_frame, is_another_server, is_no_server]
)
def test_what_does_not_answer_as_this_server_is_done_without(
    says: Listen, serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    if says is silent:
        monkeypatch.setattr(lane_call, "WELCOME_SECONDS", 0.2)
    server = serve()
    with somebody(says) as port:
        tell(server, port)
        falls_back(connect(server.address, SMALL), server)


def test_a_closed_port_is_done_without(serve: Serve, connect: Connect) -> None:
    server = serve()
    tell(server, unused_port())
    falls_back(connect(server.address, SMALL), server)


def test_a_lane_that_stays_closed_is_told_of_once(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that restarts at this moment refuses the connection, too, so the first time says nothing."""
    monkeypatch.setattr(channel, "LANE_AGAIN_SECONDS", 0.0)
    server, port = serve(), unused_port()
    made = channel.Calls(server.address, Credentials(ClientSettings()))
    made.use_lane(bytes(16), session_pb2.JoinResponse(port=server.port, lane_port=port))
    warnings = []
    for _ in range(3):
        made.open_commit().close()
        warnings.append(caplog.text.count(f"the lane, the server's port {port}, cannot be used"))
    made.close()
    assert warnings == [0, 1, 1]


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.parametrize("which", ["lane", "ordinary port"])
def test_another_servers_port_is_done_without(which: str, serve: Serve, connect: Connect) -> None:
    server, other = serve(), serve()
    tell(server, other.server.lane.port if which == "lane" else other.port)
    falls_back(connect(server.address, SMALL), server)
    assert other.clock() == 0


def test_behind_a_forwarded_port_it_is_not_tried(serve: Serve, connect: Connect, proxied: Proxied) -> None:
    """The announced port belongs to another program."""
    server = serve()
    reached = threading.Event()
    with somebody(lambda _: reached.set()) as port:
        tell(server, port)
        client = connect(proxied(server).address, SMALL).client
        trains(client, begin(client, SMALL))
    assert not reached.is_set()
    assert client.transport == "grpc"


@pytest.mark.parametrize(
    ("of_server", "of_client"),
    [({"lane_port": -1}, {}), ({}, {"lane": False})],
    ids=["the server has none", "the worker must not"],
)
def test_where_it_is_not_wanted_it_is_not_used(
    of_server: dict[str, int], of_client: dict[str, bool], serve: Serve, connect: Connect
) -> None:
    server = serve(**of_server)
    connected = connect(server.address, LARGE, **of_client)
    trains(connected.client, begin(connected.client, LARGE), LARGE)
    assert calls(server) == 0
    assert bool(server.server.lane.port) == (not of_server)
    assert connected.kinds() == []


def test_the_environment_can_forbid_it(serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMPS_CLIENT_LANE", "false")
    server = serve()
    client = connect(server.address, SMALL).client
    trains(client, begin(client, SMALL))
    assert client.transport == "grpc"


def test_a_proxy_for_http_is_no_way_for_it(
    serve: Serve, connect: Connect, tls: tuple[dict[str, Any], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loopback needs none, and gRPC takes none there; elsewhere the port may not be reachable at all."""
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    server = serve()
    client = connect(server.address, SMALL).client
    trains(client, begin(client, SMALL))
    assert client.transport == "lane"
    credentials = Credentials(ClientSettings())
    assert not channel.may_use_lane("parameters.example:50051", credentials)
    monkeypatch.delenv("https_proxy")
    for name in channel.PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert channel.may_use_lane("parameters.example:50051", credentials)
    assert not channel.may_use_lane("unix:/run/gemps", credentials)


# -- where it comes and goes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missed", [False, True], ids=["after one that was used", "after one that led nowhere"])
def test_the_next_servers_lane_is_found(missed: bool, serve: Serve, connect: Connect, tmp_path: Path) -> None:
    """With its Join."""
    server = serve(data_dir=tmp_path)
    if missed:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            tell(server, listener.getsockname()[1])
    client = connect(server.address, SMALL).client
    into = begin(client, SMALL)
    trains(client, into)
    assert calls(server) == (0 if missed else 1)
    following = server.again(resume=True)
    try:
        outcome = client.commit(payload(SMALL, 0.5), into)  # dropped, or applied: it joins anew
        assert outcome.version.clock >= 4
        before = parameters_in(SMALL, into)[0]
        trains(client, into, from_=before)
        assert calls(following) == 1
    finally:
        following.stop()


class WorkerBehindProxy:
    """A worker whose commits go through a proxy to the lane, and all else straight to the server."""

    def __init__(
        self, server: RealServer, connect: Callable[[], Connected], proxy: CuttingProxy, layout: Layout
    ) -> None:
        self.server, self.connect, self.proxy, self.layout = server, connect, proxy, layout
        tell(server, port_of(proxy.address))
        self.number = 0
        self.told: list[EventKind] = []
        self.connected = connect()
        self.into = begin(self.connected.client, layout)

    def begins(self) -> None:
        """Anew, with another client, whose first commit opens the lane."""
        self.told += self.connected.kinds()
        self.connected.client.close()
        self.connected = self.connect()
        self.into = begin(self.connected.client, self.layout)

    def kinds(self) -> list[EventKind]:
        return self.told + self.connected.kinds()

    def commits(self) -> None:
        """The next commit counts once."""
        self.number += 1
        outcome = self.connected.client.commit(payload(self.layout, 0.5), self.into)
        assert outcome.applied
        assert self.server.clock() == outcome.version.clock == self.number + 1
        assert (parameters_in(self.layout, self.into) == 0.5 * self.number).all()

    def opens_lane(self) -> None:
        """By another client if need be: a stream over gRPC would stay."""
        if self.connected.client.transport != "lane":
            self.begins()
            self.commits()
        assert self.connected.client.transport == "lane"


@pytest.fixture(params=["plain", "TLS"])
def torn(
    request: pytest.FixtureRequest, serve: Serve, connect: Connect, tls: tuple[dict[str, Any], dict[str, Any]]
) -> Iterator[Callable[[Layout], WorkerBehindProxy]]:
    proxies: list[CuttingProxy] = []
    of_server, of_client = tls if request.param == "TLS" else ({}, {})

    def make(layout: Layout) -> WorkerBehindProxy:
        server = serve(**of_server)
        proxies.append(CuttingProxy(server.server.lane.port))
        return WorkerBehindProxy(server, lambda: connect(server.address, layout, **of_client), proxies[-1], layout)

    yield make
    for proxy in proxies:
        proxy.close()


@pytest.mark.parametrize(
    ("layout", "direction", "cuts"),
    [
        # Header, payload, end; replies likewise. With TLS some more bytes.
        pytest.param(SMALL, "to_server", range(0, 200, 8), id="small-to-server"),
        pytest.param(SMALL, "to_client", range(0, 300, 8), id="small-to-client"),
        pytest.param(LARGE, "to_server", range(0, 101_000, 7_282), id="large-to-server", marks=pytest.mark.long),
        pytest.param(LARGE, "to_client", range(0, 101_000, 2_500), id="large-to-client-often", marks=pytest.mark.long),
        pytest.param(LARGE, "to_client", range(0, 101_000, 10_100), id="large-to-client"),
    ],
)
def test_a_lane_that_is_cut_at_any_byte_of_a_commit_loses_and_doubles_nothing(
    layout: Layout, direction: Direction, cuts: range, torn: Callable[[Layout], WorkerBehindProxy]
) -> None:
    one = torn(layout)
    for cut in cuts:
        one.opens_lane()
        one.proxy.cut_after(direction, cut)
        one.commits()
        one.proxy.disarm()
    assert one.proxy.cuts >= 10
    assert one.proxy.connections >= 10
    assert EventKind.DELTA_DROPPED not in one.kinds()


@pytest.mark.parametrize("direction", ["to_server", "to_client"])
def test_a_lane_that_is_cut_while_it_is_opened_is_done_without(
    direction: Direction, torn: Callable[[Layout], WorkerBehindProxy]
) -> None:
    """In the TLS handshake, in HELLO, in WELCOME."""
    one = torn(SMALL)
    one.commits()
    for cut in (0, 1, 4, 5, 6, 12):
        one.begins()
        one.proxy.cut_after(direction, cut)
        one.commits()
        one.proxy.disarm()
        assert one.connected.client.transport == "grpc"
    assert one.proxy.cuts == 6
    one.opens_lane()
    assert one.kinds() == []


def test_a_lane_that_goes_for_good_is_done_without(torn: Callable[[Layout], WorkerBehindProxy]) -> None:
    one = torn(LARGE)
    one.commits()
    assert calls(one.server) == 1
    one.proxy.cut_after("to_server", 50_000)
    one.proxy.accept_no_more()
    one.commits()
    one.commits()
    assert one.proxy.cuts == 1
    assert calls(one.server) == 0
    assert one.connected.client.transport == "grpc"
