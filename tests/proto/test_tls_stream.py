"""gemps.tls_stream against ssl.SSLSocket, over real sockets."""

import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from gemps.tls_stream import STEP_BYTES, TlsStream

from tests.security.authority import Authority

LARGE = bytes(range(256)) * 20_000  # 5 MB


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[TlsStream, ssl.SSLSocket, socket.socket]]:
    """A stream at the server's end, before its handshake, an SSLSocket at the other, and the stream's socket."""
    authority = Authority(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*authority.pair("server").write(tmp_path, "server"))
    client = ssl.create_default_context(cafile=authority.file)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        far = socket.create_connection(listening.getsockname(), timeout=20)
        near, _ = listening.accept()
    near.settimeout(20)
    stream = TlsStream(near, server, memoryview(bytearray(STEP_BYTES)), server_side=True)
    secured = client.wrap_socket(far, server_hostname="127.0.0.1", do_handshake_on_connect=False)
    with near, secured:
        yield stream, secured, near


def in_thread(work: object) -> threading.Thread:
    thread = threading.Thread(target=work)  # type: ignore[arg-type]
    thread.start()
    return thread


def is_full(stream: TlsStream) -> bool:
    """Whether the kernel takes no more."""
    try:
        stream.flush()
    except BlockingIOError:
        return True
    return False


def test_megabytes_arrive_both_ways(ends: tuple[TlsStream, ssl.SSLSocket, socket.socket]) -> None:
    stream, far, _ = ends
    received = bytearray()

    def peer() -> None:
        far.do_handshake()
        far.sendall(LARGE)
        while len(received) < len(LARGE) and (data := far.recv(1 << 16)):
            received.extend(data)

    thread = in_thread(peer)
    stream.do_handshake()
    space = memoryview(bytearray(len(LARGE)))
    assert stream.recv_into(space, wait_all=True) == len(LARGE)
    stream.sendall(LARGE[:100], LARGE[100:])
    thread.join(20)
    assert space == LARGE
    assert received == LARGE


def test_a_socket_that_does_not_block_gives_what_there_is(ends: tuple[TlsStream, ssl.SSLSocket, socket.socket]) -> None:
    stream, far, near = ends
    thread = in_thread(far.do_handshake)
    stream.do_handshake()
    thread.join(20)
    near.settimeout(0)
    space = memoryview(bytearray(1000))
    with pytest.raises(BlockingIOError):
        stream.recv_into(space, wait_all=True)
    far.sendall(b"some bytes")
    near.settimeout(20)
    assert stream.recv_into(space) == 10
    far.sendall(b"x" * 100)
    near.settimeout(20)
    assert stream.recv_into(space[:40]) == 40  # the rest waits in memory, where no selector sees it
    near.settimeout(0)
    assert stream.recv_into(space, wait_all=True) == 60


def test_what_the_kernel_does_not_take_waits_within_a_bound(
    ends: tuple[TlsStream, ssl.SSLSocket, socket.socket],
) -> None:
    stream, far, near = ends
    thread = in_thread(far.do_handshake)
    stream.do_handshake()
    thread.join(20)
    near.settimeout(0)
    taken = 0
    while not (stream.has_unsent and is_full(stream)):
        taken += stream.put(LARGE)
    received = bytearray()

    def read() -> None:
        while len(received) < taken and (data := far.recv(1 << 16)):
            received.extend(data)

    thread = in_thread(read)
    near.settimeout(20)
    stream.flush()
    thread.join(20)
    assert not stream.has_unsent
    assert len(received) == taken


@pytest.mark.parametrize("says_goodbye", [True, False])
def test_the_end_of_the_stream_is_no_bytes(
    ends: tuple[TlsStream, ssl.SSLSocket, socket.socket], says_goodbye: bool
) -> None:
    stream, far, _ = ends
    thread = in_thread(far.do_handshake)
    stream.do_handshake()
    thread.join(20)
    far.sendall(b"last")
    if says_goodbye:
        far.settimeout(0)
        with pytest.raises((ssl.SSLWantReadError, BlockingIOError)):
            far.unwrap()
    else:
        far.shutdown(socket.SHUT_WR)
    space = memoryview(bytearray(100))
    assert stream.recv_into(space, wait_all=True) == 4
    assert stream.recv_into(space) == 0


def test_a_peer_without_tls_fails_the_handshake_and_gets_an_alert(
    ends: tuple[TlsStream, ssl.SSLSocket, socket.socket],
) -> None:
    stream, far, _ = ends
    socket.socket.send(far, b"\x16\x03\x01\x00\x05abcde")
    with pytest.raises(ssl.SSLError):
        stream.do_handshake()
    assert socket.socket.recv(far, 100)[:1] == b"\x15"  # an alert
