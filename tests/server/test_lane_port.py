"""Who is let in at the lane: by HELLO, by server, over TLS or without it; and where the port is."""

import asyncio
import errno
import logging
import os
import re
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from gem_server.errors import StartupError
from gem_server.security.certificates import Certificates, read_certificates
from gem_server.security.watched_files import LOOK_SECONDS, WatchedFiles
from gem_server.server import Server
from gem_server.service import lane_connection, lane_port
from gem_server.service.lane_connection import LaneConnection
from gem_server.service.lane_port import LanePort
from gem_server.settings import ServerSettings
from google.rpc import code_pb2

from tests.security.authority import Authority
from tests.waiting import eventually_async
from tests.wire.lane import CANCEL, HELLO, WELCOME, LanePeer, frame, hello
from tests.wire.refusals import PATIENCE

INCARNATION = 77
SESSION = b"s" * 16
GOOD = hello(SESSION, INCARNATION).SerializeToString()


async def wait_for_words(connection: LaneConnection) -> None:
    """A handler that accepts its worker, and reads whatever it sends."""
    connection.welcome(100, 0)
    while await connection.receive() is not None:
        pass


class Stage:
    """A lane, and those who connect to it."""

    def __init__(self, port: LanePort, number: int) -> None:
        self.port = port
        self.number = number
        self.peers: list[LanePeer] = []

    async def peer(self, tls: ssl.SSLContext | None = None) -> LanePeer:
        peer = await LanePeer.connect("127.0.0.1", self.number, tls)
        self.peers.append(peer)
        return peer

    async def welcomed(self, tls: ssl.SSLContext | None = None) -> LanePeer:
        peer = await self.peer(tls)
        await peer.send(HELLO, GOOD)
        await peer.expect(WELCOME)
        return peer


@asynccontextmanager
async def on_stage(
    serve: Callable[[LaneConnection], Awaitable[None]] = wait_for_words,
    certificates: WatchedFiles[Certificates] | None = None,
) -> AsyncIterator[Stage]:
    port = LanePort(serve, INCARNATION, certificates)
    stage = Stage(port, port.open("127.0.0.1", 0))
    try:
        async with asyncio.timeout(3 * PATIENCE):
            yield stage
    finally:
        for peer in stage.peers:
            peer.abort()
        await port.close(None)


# -- HELLO -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", b"\x40", frame(HELLO, GOOD)[:-1]], ids=["nothing", "a byte", "nearly all"])
async def test_who_does_not_say_hello_in_time_is_closed(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_connection, "HELLO_SECONDS", 0.1)
    async with on_stage() as stage:
        peer = await stage.peer()
        await peer.send_bytes(sent)
        assert await peer.closed()
        assert not stage.port.connections


async def test_who_begins_no_tls_handshake_is_closed(
    monkeypatch: pytest.MonkeyPatch, certificates: WatchedFiles[Certificates]
) -> None:
    monkeypatch.setattr(lane_connection, "HELLO_SECONDS", 0.1)
    async with on_stage(certificates=certificates) as stage:
        assert await (await stage.peer()).closed()


async def test_who_said_hello_has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_connection, "HELLO_SECONDS", 0.1)
    async with on_stage() as stage:
        silent, welcomed = await stage.peer(), await stage.welcomed()
        await silent.closed()
        later = await stage.peer()
        await later.closed()  # by now the time of a stranger is over for all
        await welcomed.send(6, b"12345678")
        assert await welcomed.expect(7) == b"12345678"


async def test_the_oldest_stranger_makes_room_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_port, "MAX_STRANGERS", 2)
    async with on_stage() as stage:
        workers = [await stage.welcomed() for _ in range(3)]  # they count no longer
        strangers = [await stage.peer() for _ in range(4)]
        assert await strangers[0].closed()
        assert await strangers[1].closed()
        for stranger in strangers[2:]:
            await stranger.send(HELLO, GOOD)
            await stranger.expect(WELCOME)
        assert len(stage.port.connections) == len(workers) + 2


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (hello(SESSION, INCARNATION, magic=b"gemps").SerializeToString(), "without the magic"),
        (hello(SESSION, INCARNATION, magic=b"").SerializeToString(), "without the magic"),
        (hello(SESSION, INCARNATION, version=0).SerializeToString(), "version 0"),
        (hello(SESSION, INCARNATION, version=2).SerializeToString(), "version 2; this server speaks 1"),
        (hello(SESSION, INCARNATION + 1).SerializeToString(), "another server"),
        (hello(SESSION, 0).SerializeToString(), "another server"),
        (b"\xff" * 40, "no LaneHello"),
    ],
    ids=["magic", "no magic", "version 0", "version 2", "incarnation", "no incarnation", "noise"],
)
async def test_a_hello_that_is_not_meant_for_this_server_is_ended(body: bytes, reason: str) -> None:
    called: list[LaneConnection] = []

    async def serve(connection: LaneConnection) -> None:
        called.append(connection)

    async with on_stage(serve) as stage:
        peer = await stage.peer()
        await peer.send(HELLO, body)
        status = await peer.end()
        assert status.code == code_pb2.INVALID_ARGUMENT
        assert reason in status.message
    assert not called


@pytest.mark.parametrize("kind", [0, 2, 3, 4, 5, 6, 7, 8, 71])
async def test_what_comes_in_hellos_place_is_ended(kind: int) -> None:
    async with on_stage() as stage:
        peer = await stage.peer()
        await peer.send(kind, bytes(8))
        status = await peer.end()
        assert status.code == code_pb2.INVALID_ARGUMENT
        assert f"kind {kind} in state HELLO" in status.message


async def test_a_browser_is_ended_and_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """A line for each could fill the disk."""
    async with on_stage() as stage:
        for _ in range(20):
            peer = await stage.peer()
            await peer.send_bytes(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await peer.end()).code == code_pb2.INVALID_ARGUMENT
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "a connection of the lane from 127.0.0.1:" in line


async def test_a_hello_byte_by_byte_is_one() -> None:
    async with on_stage() as stage:
        peer = await stage.peer()
        for byte in frame(HELLO, GOOD):
            await peer.send_bytes(bytes((byte,)))
            await asyncio.sleep(0)
        await peer.expect(WELCOME)


async def test_a_worker_that_goes_at_any_byte_of_its_hello_leaves_nothing() -> None:
    async with on_stage() as stage:
        whole = frame(HELLO, GOOD)
        for count in range(len(whole) + 1):
            peer = await stage.peer()
            await peer.send_bytes(whole[:count])
            peer.abort()
        while stage.port.connections:
            await asyncio.sleep(0)
        assert stage.port.strangers == 0


# -- TLS ---------------------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def certificates(authority: Authority, tmp_path: Path, clock: Clock) -> WatchedFiles[Certificates]:
    return reloading(authority.pair("server").write(tmp_path, "server"), None, clock)


def reloading(paths: tuple[Path, Path], client_ca: Path | None, clock: Clock) -> WatchedFiles[Certificates]:
    return WatchedFiles(paths, lambda: read_certificates(*paths, client_ca), clock)


def trust(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority.file)


async def test_over_tls_it_is_the_same(authority: Authority, certificates: WatchedFiles[Certificates]) -> None:
    async with on_stage(certificates=certificates) as stage:
        peer = await stage.welcomed(trust(authority))
        await peer.send(6, b"12345678")
        assert await peer.expect(7) == b"12345678"


@pytest.mark.parametrize("sent", [frame(HELLO, GOOD), b"x" * 5000], ids=["hello", "noise"])
async def test_a_plain_hello_to_tls_is_closed(sent: bytes, certificates: WatchedFiles[Certificates]) -> None:
    async with on_stage(certificates=certificates) as stage:
        peer = await stage.peer()
        await peer.send_bytes(sent)
        data = await _all_of(peer)
        assert WELCOME not in (data[4:5] or b"\0")
        assert len(data) < 100  # an alert of TLS at most


async def _all_of(peer: LanePeer) -> bytes:
    try:
        return await peer.reader.read(-1)
    except OSError:
        return b""


async def test_a_tls_handshake_with_a_plain_lane_fails(authority: Authority) -> None:
    async with on_stage() as stage:
        with pytest.raises((ssl.SSLError, OSError)):
            await stage.peer(trust(authority))
        await stage.welcomed()


async def test_a_client_that_does_not_believe_the_certificate_is_closed(
    tmp_path: Path, certificates: WatchedFiles[Certificates]
) -> None:
    async with on_stage(certificates=certificates) as stage:
        with pytest.raises(ssl.SSLError):
            await stage.peer(trust(Authority(tmp_path, "stranger")))
        while stage.port.connections:
            await asyncio.sleep(0)


async def test_a_renewed_certificate_is_for_new_connections(
    authority: Authority, tmp_path: Path, certificates: WatchedFiles[Certificates], clock: Clock
) -> None:
    stranger = Authority(tmp_path, "stranger")
    async with on_stage(certificates=certificates) as stage:
        older = await stage.welcomed(trust(authority))
        stranger.pair("server").write(tmp_path, "server")
        clock.now += LOOK_SECONDS
        await stage.welcomed(trust(stranger))
        with pytest.raises(ssl.SSLError):
            await stage.peer(trust(authority))
        await older.send(6, b"12345678")
        assert await older.expect(7) == b"12345678"


async def test_slow_disk_stops_no_other_connection_of_the_lane(
    authority: Authority, tmp_path: Path, clock: Clock
) -> None:
    paths = authority.pair("server").write(tmp_path, "server")
    reads, may_read = threading.Event(), threading.Event()
    may_read.set()

    def read() -> Certificates:
        reads.set()
        assert may_read.wait(PATIENCE)
        return read_certificates(*paths, None)

    renewed = Authority(tmp_path, "renewed")
    async with on_stage(certificates=WatchedFiles(paths, read, clock)) as stage:
        older = await stage.welcomed(trust(authority))
        renewed.pair("server").write(tmp_path, "server")
        clock.now += LOOK_SECONDS
        may_read.clear()
        reads.clear()
        newer = asyncio.create_task(stage.welcomed(trust(renewed)))
        await eventually_async(reads.is_set)
        await older.send(6, b"12345678")
        assert await older.expect(7) == b"12345678"
        assert not newer.done()
        may_read.set()
        await newer


@pytest.mark.parametrize("shows", ["nothing", "its own", "a stranger's"])
async def test_where_certificates_are_asked_for_nobody_comes_in_without(
    shows: str, authority: Authority, tmp_path: Path, clock: Clock
) -> None:
    asking = reloading(authority.pair("server").write(tmp_path, "server"), authority.file, clock)
    context = trust(authority)
    if shows != "nothing":
        signer = authority if shows == "its own" else Authority(tmp_path, "stranger")
        context.load_cert_chain(*signer.pair("worker").write(tmp_path, "worker"))
    async with on_stage(certificates=asking) as stage:
        peer = await stage.peer(context)  # with TLS 1.3 the client's handshake is over before the server has judged
        await peer.send(HELLO, GOOD)
        received = await peer.receive()
        assert (received is not None and received[0] == WELCOME) == (shows == "its own")


# -- handlers, and the end ---------------------------------------------------------------------------------------------


async def test_a_handler_that_fails_ends_its_connection_and_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async def serve(connection: LaneConnection) -> None:
        raise ValueError("a bug")

    async with on_stage(serve) as stage:
        peer = await stage.peer()
        await peer.send(HELLO, GOOD)
        assert await peer.closed()
        assert not stage.port.connections
    assert "a connection of the lane failed" in caplog.text


async def test_a_handler_is_cancelled_when_its_worker_goes() -> None:
    cancelled = asyncio.Event()

    async def serve(connection: LaneConnection) -> None:
        connection.welcome(100, 0)
        try:
            await connection.receive()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    for goes in ("with CANCEL", "closing", "breaking off"):
        cancelled.clear()
        async with on_stage(serve) as stage:
            peer = await stage.welcomed()
            if goes == "with CANCEL":
                await peer.send(CANCEL)
            elif goes == "closing":
                peer.close()
            else:
                peer.abort()
            await cancelled.wait()
            assert not stage.port.connections


async def test_calls_may_end_within_the_grace_of_a_drain() -> None:
    finished = asyncio.Event()
    goes_on = asyncio.Event()

    async def serve(connection: LaneConnection) -> None:
        connection.welcome(100, 0)
        await goes_on.wait()
        finished.set()

    async with on_stage(serve) as stage:
        await stage.welcomed()
        stranger = await stage.peer()
        closing = asyncio.create_task(stage.port.close(PATIENCE))
        goes_on.set()
        await closing
        assert finished.is_set()
        assert await stranger.closed()
        assert not stage.port.connections
        with pytest.raises(ConnectionRefusedError):
            await stage.peer()


@pytest.mark.parametrize("grace", [None, 0.05])
async def test_calls_are_cancelled_after_the_grace_of_a_drain(grace: float | None) -> None:
    async with on_stage() as stage:
        peers = [await stage.welcomed() for _ in range(3)]
        await stage.port.close(grace)
        assert [await peer.closed() for peer in peers] == [True] * 3
        assert not stage.port.connections
        await stage.port.close(grace)  # harmless


@pytest.mark.parametrize("is_secured", [False, True], ids=["plain", "TLS"])
async def test_a_peer_that_has_gone_before_it_is_accepted_harms_nobody(
    is_secured: bool, authority: Authority, certificates: WatchedFiles[Certificates]
) -> None:
    """Its socket has no address any more, and TLS cannot begin."""
    async with on_stage(certificates=certificates if is_secured else None) as stage:
        for sent in (b"", b"x") * 10:
            plain = socket.create_connection(("127.0.0.1", stage.number))
            plain.sendall(sent)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            plain.close()
        await stage.welcomed(trust(authority) if is_secured else None)


# -- where it is -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "::1", "::"])
async def test_every_address_of_a_host_is_listened_at(host: str) -> None:
    port = LanePort(wait_for_words, INCARNATION, None)
    try:
        number = port.open(host, 0)
    except StartupError:
        pytest.skip(f"no {host} here")
    reached = []
    for address in ("127.0.0.1", "::1"):
        try:
            _, writer = await asyncio.open_connection(address, number)
        except OSError:
            continue
        writer.close()
        reached.append(address)
    await port.close(None)
    if host != "localhost":  # whatever the machine takes it for
        expected = {"127.0.0.1": ["127.0.0.1"], "0.0.0.0": ["127.0.0.1"], "::1": ["::1"]}
        assert reached == expected.get(host, ["127.0.0.1", "::1"])
    assert reached


async def test_a_port_that_is_taken_is_named_with_the_way_out() -> None:
    async with on_stage() as stage:
        other = LanePort(wait_for_words, INCARNATION, None)
        with pytest.raises(StartupError, match=f"port {stage.number} of 127.0.0.1 .*--lane-port"):
            other.open("127.0.0.1", stage.number)
        await other.close(None)


TWO_ADDRESSES = [
    (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.2", 0)),
]
# RFC 5737: no machine has it.
FOREIGN = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 0))


def resolve(monkeypatch: pytest.MonkeyPatch, addresses: list[tuple[object, ...]]) -> None:
    """Make every host name resolve to these addresses."""
    monkeypatch.setattr(lane_port.socket, "getaddrinfo", lambda *_, **__: addresses)


@pytest.mark.parametrize("port", [0, None], ids=["a free port", "a given port"])
async def test_an_address_that_cannot_be_bound_leaves_the_lane_at_the_others(
    port: int | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if port is None:
        port, listener = free_pair()
        listener.close()
    with monkeypatch.context() as changed:
        resolve(changed, [FOREIGN, *TWO_ADDRESSES])
        lane = LanePort(wait_for_words, INCARNATION, None)
        number = lane.open("host", port)
    assert number == (port or number) != 0
    for address in ("127.0.0.1", "127.0.0.2"):
        _, writer = await asyncio.open_connection(address, number)
        writer.close()
    await lane.close(None)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "192.0.2.1" in warning
    assert os.strerror(errno.EADDRNOTAVAIL) in warning


async def test_a_host_without_an_address_that_can_be_bound_is_an_error_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolve(monkeypatch, [FOREIGN])
    lane = LanePort(wait_for_words, INCARNATION, None)
    with pytest.raises(StartupError, match=re.escape(os.strerror(errno.EADDRNOTAVAIL))):
        lane.open("host", 0)
    assert lane.port == 0


async def test_a_given_port_that_is_taken_at_one_address_serves_the_others_as_grpcs_does(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    resolve(monkeypatch, TWO_ADDRESSES)
    lane = LanePort(wait_for_words, INCARNATION, None)
    with socket.create_server(("127.0.0.2", 0)) as taken:
        number = lane.open("host", taken.getsockname()[1])
        assert number == taken.getsockname()[1]
    assert os.strerror(errno.EADDRINUSE) in caplog.text
    await lane.close(None)


async def test_a_default_port_that_is_taken_at_one_address_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers would find another process there."""
    resolve(monkeypatch, TWO_ADDRESSES)
    lane = LanePort(wait_for_words, INCARNATION, None)
    with socket.create_server(("127.0.0.2", 0)) as taken:
        with pytest.raises(StartupError, match="Address already in use"):
            lane.open("host", taken.getsockname()[1], only_if_free=True)
        assert lane.open("host", 0) != taken.getsockname()[1]
    await lane.close(None)


def free_pair() -> tuple[int, socket.socket]:
    """A port that is free, and a listener at the next one."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = first.getsockname()[1]
            try:
                return port, socket.create_server(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue


@asynccontextmanager
async def serving(**settings: object) -> AsyncIterator[Server]:
    server = Server(ServerSettings(**settings))  # type: ignore[arg-type]
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def test_the_lane_is_at_the_next_port() -> None:
    port, listener = free_pair()
    listener.close()
    async with serving(bind=f"127.0.0.1:{port}") as server:
        assert server.lane.port == server.ports.lane == port + 1


async def test_where_the_next_port_is_taken_the_lane_is_elsewhere_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    port, listener = free_pair()
    with listener:
        async with serving(bind=f"127.0.0.1:{port}") as server:
            assert server.ports.lane not in (0, port, port + 1)
            told = f"port {port + 1} is taken, so the lane is at {server.ports.lane}: choose one with --lane-port"
            assert told in caplog.text


async def test_a_port_that_was_asked_for_and_is_taken_ends_the_start() -> None:
    port, listener = free_pair()
    with listener:
        server = Server(ServerSettings(bind=f"127.0.0.1:{port}", lane_port=port + 1))
        with pytest.raises(StartupError, match=f"port {port + 1} of 127.0.0.1 .*--lane-port"):
            await server.start()


async def test_the_lane_may_be_at_any_free_port_or_nowhere() -> None:
    async with serving(bind="127.0.0.1:0", lane_port=0) as server:
        assert server.ports.lane not in (0, server.port)
    async with serving(bind="127.0.0.1:0", lane_port=-1) as server:
        assert server.ports.lane == server.lane.port == 0


def test_the_ports_of_one_server_differ() -> None:
    with pytest.raises(ValueError, match="--lane-port 50052 is the port of --bind, too"):
        ServerSettings(bind="127.0.0.1:50052", lane_port=50_052)
    assert ServerSettings(bind="127.0.0.1:0", lane_port=0).lane_port == 0
    for wrong in (-2, 65_536):
        with pytest.raises(ValueError, match="lane_port"):
            ServerSettings(lane_port=wrong)
