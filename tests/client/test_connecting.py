"""Connections that do not come about, or break: what a worker is told, and that it starts over from the address."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import grpc
import pytest
from gem_worker.client import EventKind, Observer, ServerMisbehavedError, ServerUnavailableError, channel
from gem_worker.client.credentials import Credentials
from gem_worker.client.errors import TornCallError
from gem_worker.client.rpc_status import failure

from tests.client.conftest import Connect, Proxied, Script, Serve
from tests.client.models import SMALL, buffer, payload
from tests.client.real_server import begin
from tests.client.scripted_server import Action, refuse, tear

Status = grpc.StatusCode


class Failed(grpc.RpcError):
    """What gRPC raises, with a text of its own."""

    def __init__(self, details: str) -> None:
        self._details = details

    def code(self) -> grpc.StatusCode:
        return Status.UNAVAILABLE

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> None:
        return None


@contextlib.contextmanager
def listening(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """The address of something that gives every connection this answer, and hangs up."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    answer(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def web_server() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_web_server_in_its_place_is_told_at_once(connect: Connect) -> None:
    with web_server() as address:
        connected = connect(address, SMALL)
        with pytest.raises(ServerMisbehavedError, match="does not speak gRPC; give the port that gemps serve"):
            connected.client.join()
    assert connected.events == []


def test_any_other_service_in_its_place_is_told_at_once() -> None:
    with (
        listening(lambda connection: connection.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")) as address,
        Observer(address) as observer,
        pytest.raises(ServerMisbehavedError, match="does not speak gRPC"),
    ):
        observer.get_status()


def test_what_hangs_up_at_once_may_be_a_forwarded_port_whose_server_is_yet_to_come(connect: Connect) -> None:
    with listening(lambda connection: connection.recv(1000)) as address:
        connected = connect(address, SMALL, connect_timeout=0.3)
        with pytest.raises(ServerUnavailableError, match="hangs up at once"):
            connected.client.join()
    assert connected.kinds() == [EventKind.WAITING_FOR_SERVER]


def test_name_that_nobody_knows_is_told_with_what_to_check(connect: Connect) -> None:
    connected = connect("no-such-host.invalid:50051", SMALL, connect_timeout=0.3)
    with pytest.raises(ServerUnavailableError, match=r"no-such-host\.invalid.*check"):
        connected.client.join()
    assert connected.kinds() == [EventKind.WAITING_FOR_SERVER]
    assert "no-such-host.invalid" in connected.events[0].message


@pytest.mark.parametrize(
    ("details", "why", "fix"),
    [
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:50051: Failed to connect to remote "
            "host: Connection refused",
            "connection refused by 10.0.0.1:50051",
            "gemps serve",
        ),
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv6:%5B2001:db8::1%5D:50051: Failed to connect "
            "to remote host: Connection refused",
            "connection refused by [2001:db8::1]:50051",
            "--bind",
        ),
        (
            "errors resolving servr:50051: [field:hostname lookup error:address lookup failed for servr:50051: Domain "
            "name not found]",
            "the name servr is not known here",
            "spelt",
        ),
        (
            "errors resolving servr:50051: [field:hostname lookup error:address lookup failed for servr:50051: Timeout "
            "while contacting DNS servers]",
            "DNS did not say where servr is",
            "DNS",
        ),
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:50051: Failed to connect to remote "
            "host: getsockopt(SO_ERROR): No route to host",
            "10.0.0.1:50051 cannot be reached from here",
            "firewalls",
        ),
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:50051: tcp handshaker shutdown",
            "10.0.0.1:50051 does not answer",
            "firewalls",
        ),
        ("Stream removed (recvmsg:Connection timed out (110))", "UNAVAILABLE: Stream removed", ""),
    ],
)
def test_what_grpc_says_is_told_in_words_with_the_fix(details: str, why: str, fix: str) -> None:
    torn = failure(Failed(details))
    assert isinstance(torn, TornCallError)
    assert str(torn).startswith(why)
    assert fix in torn.fix
    assert bool(fix) == bool(torn.fix)
    assert not torn.by_stranger


def test_broken_call_is_repeated_on_a_new_connection(serve: Serve, proxied: Proxied, connect: Connect) -> None:
    """So that a name is looked up again, and a path that lets nothing through any more is left."""
    proxy = proxied(serve())
    connected = connect(proxy.address, SMALL)
    into = begin(connected.client, SMALL)
    assert connected.client.commit(payload(SMALL, 0.5), into).applied
    assert proxy.connections == 1
    for breaks in range(1, 4):
        proxy.cut_after("to_client", 0)
        assert connected.client.commit(payload(SMALL, 0.5), into).applied
        assert proxy.cuts == breaks
        assert proxy.connections > breaks


@pytest.mark.parametrize(
    ("action", "is_new"), [(tear, True), (refuse(Status.UNAVAILABLE, "STARTING", retry_after=1.0), False)]
)
def test_only_a_break_costs_the_connection(
    action: Action, is_new: bool, script: Script, proxied: Proxied, connect: Connect
) -> None:
    server = script(SMALL)
    proxy = proxied(server)
    client = connect(proxy.address, SMALL).client
    client.join()
    assert proxy.connections == 1
    server.at("pull", action)
    client.pull(buffer(SMALL))
    assert proxy.connections == 1 + is_new


def test_client_that_was_closed_makes_no_new_connection(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    client = connect("127.0.0.1:9", SMALL).client
    opened: list[str] = []
    open_channel = channel.open_channel

    def counting(address: str, credentials: Credentials) -> grpc.Channel:
        opened.append(address)
        return open_channel(address, credentials)

    monkeypatch.setattr(channel, "open_channel", counting)
    client.give_up()  # renews the connection
    assert len(opened) == 1
    client.close()
    client.give_up()
    assert len(opened) == 1
