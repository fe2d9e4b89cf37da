"""When a reader wakes, and that none hangs."""

import random
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gemps.low_water_mark import RESERVE_BYTES, WAKE_BYTES, LowWaterMark
from gemps.tls_stream import STEP_BYTES, TlsStream

from tests.security.authority import Authority

LONG = RESERVE_BYTES + WAKE_BYTES
LITTLE, MUCH = 16 << 10, 16 << 20
HANG_SECONDS = 20


@pytest.fixture(params=[0])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A reader's, which has a buffer of `param` bytes (0: the kernel has enlarged it), and a sender's."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        if request.param:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, request.param)
        sender = socket.create_connection(listening.getsockname())
        reader, _ = listening.accept()
    sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with sender, reader:
        while not request.param and reader.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) < 2 * WAKE_BYTES:
            thread = threading.Thread(target=sender.sendall, args=(bytes(MUCH),))
            thread.start()
            reader.recv(MUCH, socket.MSG_WAITALL)
            thread.join()
        yield reader, sender


def wakes(reader: socket.socket, seconds: float) -> bool:
    return bool(select.select([reader], [], [], seconds)[0])


def test_a_reader_of_a_long_payload_wakes_when_the_mark_is_reached(ends: tuple[socket.socket, socket.socket]) -> None:
    reader, sender = ends
    mark = LowWaterMark(reader)
    assert mark.expect(LONG) == WAKE_BYTES
    sender.sendall(bytes(LITTLE))
    assert not wakes(reader, 0.1)
    sender.sendall(bytes(WAKE_BYTES - LITTLE))
    assert wakes(reader, HANG_SECONDS)


@pytest.mark.parametrize("ends", [32 << 10], indirect=True)
def test_a_reader_with_a_small_buffer_wakes_at_the_next_byte(ends: tuple[socket.socket, socket.socket]) -> None:
    reader, sender = ends
    assert LowWaterMark(reader).expect(LONG) == WAKE_BYTES
    sender.sendall(b"x")
    assert wakes(reader, HANG_SECONDS)


@pytest.mark.parametrize("count", [0, 1, WAKE_BYTES, LONG - 1])
def test_otherwise_it_wakes_at_the_next_byte(ends: tuple[socket.socket, socket.socket], count: int) -> None:
    reader, sender = ends
    mark = LowWaterMark(reader)
    mark.expect(LONG)
    sender.sendall(b"x")
    assert not wakes(reader, 0.1)
    assert mark.expect(count) == count
    assert wakes(reader, HANG_SECONDS)


def read_all(read: Callable[[memoryview], int], mark: LowWaterMark, space: memoryview) -> None:
    missing = len(space)
    while missing:
        most = mark.expect(missing)
        missing -= read(space[len(space) - missing :][:most])


def finishes(sent: bytes, send: Callable[[bytes], None], work: Callable[[], None]) -> bool:
    """Whether a reader's `work` ends after `sent`, which is sent in random pieces."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    chance = random.Random(len(sent))
    view = memoryview(sent)
    while view:
        size = chance.choice([1, 1000, WAKE_BYTES - 1, WAKE_BYTES, WAKE_BYTES + 1, RESERVE_BYTES])
        send(bytes(view[:size]))
        view = view[size:]
        if chance.random() < 0.5:
            thread.join(0.002)
    thread.join(HANG_SECONDS)
    return not thread.is_alive()


SIZES = [LONG - 1, LONG, LONG + 1, LONG + 16_401, 2 * LONG - 1, *range(2_000_000, 2_000_020)]


@pytest.mark.parametrize("size", SIZES)
def test_a_blocking_read_of_all_ends(ends: tuple[socket.socket, socket.socket], size: int) -> None:
    reader, sender = ends
    mark = LowWaterMark(reader)
    sent, space = random.Random(size).randbytes(size), memoryview(bytearray(size))
    assert finishes(
        sent, sender.sendall, lambda: read_all(lambda into: reader.recv_into(into, 0, socket.MSG_WAITALL), mark, space)
    )
    assert space == sent


@pytest.mark.parametrize("size", SIZES)
def test_so_does_one_of_tls(ends: tuple[socket.socket, socket.socket], size: int, tmp_path: Path) -> None:
    reader, sender = ends
    authority = Authority(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*authority.pair("server").write(tmp_path, "server"))
    client = ssl.create_default_context(cafile=authority.file)
    near = TlsStream(reader, server, memoryview(bytearray(STEP_BYTES)), server_side=True)
    far = TlsStream(sender, client, memoryview(bytearray(STEP_BYTES)), server_name="127.0.0.1")
    handshake = threading.Thread(target=near.do_handshake)
    handshake.start()
    far.do_handshake()
    handshake.join()
    mark = LowWaterMark(reader)
    sent, space = random.Random(size).randbytes(size), memoryview(bytearray(size))
    assert finishes(sent, far.sendall, lambda: read_all(lambda into: near.recv_into(into, wait_all=True), mark, space))
    assert space == sent
