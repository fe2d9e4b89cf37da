"""The Commit call on a connection of its own, against a peer that speaks HTTP/2 frame by frame.

What it does with a real server, every other test of this folder shows.
"""

import base64
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import grpc
import pytest
from gem_worker.client import direct_call
from gem_worker.client.direct_call import CallEnded, DirectCall, Route
from gem_worker.client.rpc_status import failure
from gemps import header_block
from gemps.header_block import UnknownEncodingError, read_headers, write_headers

DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
LIMIT = 4 << 20


def literal(*headers: tuple[str, bytes]) -> bytes:
    """As gRPC's server writes header blocks: literals, which it would index if it were allowed to."""
    return b"".join(
        b"\x40" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value for name, value in headers
    )


OK = b"\x88" + literal(("content-type", b"application/grpc"))  # :status 200 is entry 8


class Peer:
    """The other end of one call."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connection: socket.socket
        self.headers: dict[str, bytes] = {}
        self.error: BaseException | None = None

    def accept(self, window: int = 65_535, max_frame: int = 16_384) -> None:
        self.connection, _ = self._listener.accept()
        assert self.exactly(24) == b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        kind, _, _, settings = self.frame()
        assert kind == SETTINGS
        assert dict(struct.iter_unpack(">HI", settings))[1] == 0  # no table of headers
        assert self.frame()[0] == WINDOW_UPDATE
        kind, flags, stream, block = self.frame()
        assert (kind, flags, stream) == (HEADERS, 0x4, 1)
        self.headers = read_headers(block)
        self.send(SETTINGS, 0, 0, struct.pack(">HIHI", 4, window, 5, max_frame))

    def exactly(self, count: int) -> bytes:
        got = b""
        while len(got) < count:
            more = self.connection.recv(count - len(got))
            if not more:
                raise EOFError
            got += more
        return got

    def frame(self) -> tuple[int, int, int, bytes]:
        head = self.exactly(9)
        return head[3], head[4], int.from_bytes(head[5:9], "big"), self.exactly(int.from_bytes(head[:3], "big"))

    def message(self) -> tuple[bytes, list[int]]:
        """The next message of the client, and the lengths of the frames it came in."""
        got, lengths = b"", []
        while len(got) < 5 or len(got) < 5 + int.from_bytes(got[1:5], "big"):
            kind, _, _, payload = self.frame()
            if kind == DATA:
                got += payload
                lengths.append(len(payload))
        return got[5:], lengths

    def send(self, kind: int, flags: int, stream: int, payload: bytes = b"") -> None:
        self.connection.sendall(
            len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
        )

    def status(self, code: int, message: bytes = b"", *more: tuple[str, bytes]) -> None:
        self.send(HEADERS, 0x5, 1, literal(("grpc-status", str(code).encode()), ("grpc-message", message), *more))

    def close(self) -> None:
        self._listener.close()
        if hasattr(self, "connection"):
            self.connection.close()


def prefixed(data: bytes) -> bytes:
    return b"\0" + len(data).to_bytes(4, "big") + data


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.close()


@pytest.fixture
def call(peer: Peer) -> Iterator[DirectCall]:
    route = Route(peer.address, (("authorization", "Bearer x"),))
    made = DirectCall([route], "/gemps.v1.ParameterServerService/Commit", LIMIT)
    yield made
    made.close()


def script(peer: Peer, part: Callable[[], None]) -> threading.Thread:
    """Let the peer play its part in a thread; what fails there fails the test (join_script)."""

    def run() -> None:
        try:
            part()
        except BaseException as error:  # handed to the test
            peer.error = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def join_script(peer: Peer, thread: threading.Thread) -> None:
    thread.join(timeout=30)
    assert not thread.is_alive()
    if peer.error is not None:
        raise peer.error


def received(call: DirectCall) -> bytes | None:
    message = call.receive()
    return bytes(message) if message is not None else None


def ask(call: DirectCall, data: bytes = b"begin") -> bytes | None:
    call.send([(data,)])
    return received(call)


def test_a_call_names_its_method_and_carries_its_metadata(peer: Peer, call: DirectCall) -> None:
    def part() -> None:
        peer.accept()
        assert peer.message()[0] == b"hello"
        peer.send(HEADERS, 0x4, 1, OK)
        peer.send(DATA, 0, 1, prefixed(b"welcome"))
        peer.status(0)

    thread = script(peer, part)
    with call.exchange():
        call.send([(b"he", b"", b"llo")])
        assert received(call) == b"welcome"
        assert received(call) is None
        assert received(call) is None  # and remains so
    join_script(peer, thread)
    assert peer.headers[":path"] == b"/gemps.v1.ParameterServerService/Commit"
    assert peer.headers["authorization"] == b"Bearer x"
    assert peer.headers["te"] == b"trailers"
    assert not call.look()


def test_messages_are_put_together_from_frames_of_any_cut(peer: Peer, call: DirectCall) -> None:
    big = bytes(range(256)) * 8_000
    stream = prefixed(b"") + prefixed(b"a") + prefixed(big) + prefixed(b"z" * 300) + prefixed(big)

    def part() -> None:
        peer.accept()
        peer.send(HEADERS, 0x4, 1, OK)
        position, cut = 0, 1
        while position < len(stream):
            piece = stream[position : position + cut]
            if cut % 2:
                peer.send(DATA, 0x8, 1, b"\x03" + piece + bytes(3))  # padded
            else:
                peer.send(DATA, 0, 1, piece)
            peer.send(PING, 0, 0, b"12345678")
            peer.send(99, 0, 0, b"of a type that nobody knows")
            position += len(piece)
            cut = cut * 3 + 1
        peer.status(0)

    thread = script(peer, part)
    with call.exchange():
        call.send([(b"begin",)])
        for expected in (b"", b"a", big, b"z" * 300, big):
            assert received(call) == expected
        assert received(call) is None
    join_script(peer, thread)


def test_what_is_sent_waits_for_the_window_and_keeps_to_the_largest_frame(peer: Peer, call: DirectCall) -> None:
    big = bytes(range(251)) * 2_000
    lengths: list[int] = []

    def part() -> None:
        peer.accept(window=100_000, max_frame=20_000)
        got = b""
        while len(got) < 5 + len(big):
            kind, _, _, payload = peer.frame()
            if kind == DATA:
                got += payload
                lengths.append(len(payload))
                assert len(got) <= given()
                if len(got) == given():
                    more = struct.pack(">I", 65_535)
                    peer.send(WINDOW_UPDATE, 0, 0, more)
                    peer.send(WINDOW_UPDATE, 0, 1, more)
                    updates.append(65_535)
        assert got[5:] == big
        peer.status(0)

    updates: list[int] = []

    def given() -> int:
        return 65_535 + sum(updates)  # of the connection, which is the smaller one

    thread = script(peer, part)
    with call.exchange():
        call.send([(big[:1000], memoryview(big)[1000:])])
        assert received(call) is None
    join_script(peer, thread)
    assert max(lengths) <= 20_000


def test_a_reader_gives_the_window_back(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_call, "_WINDOW", 16 << 20)
    call = DirectCall([Route(peer.address, ())], "/x/Y", LIMIT)
    message = bytes(1 << 20)

    def part() -> None:
        peer.accept()
        peer.send(HEADERS, 0x4, 1, OK)
        for _ in range(5):
            peer.send(DATA, 0, 1, prefixed(message))
        more = {0: 0, 1: 0}
        while min(more.values()) < 4 << 20:
            kind, _, stream, payload = peer.frame()
            if kind == WINDOW_UPDATE:
                more[stream] += int.from_bytes(payload, "big")
        peer.status(0)

    thread = script(peer, part)
    with call.exchange():
        call.send([(b"begin",)])
        for _ in range(5):
            assert received(call) == message
        assert received(call) is None
    join_script(peer, thread)


def test_pings_are_answered_between_two_exchanges(peer: Peer, call: DirectCall) -> None:
    def part() -> None:
        peer.accept()
        peer.send(PING, 0, 0, b"anybody?")
        while (frame := peer.frame())[0] != PING:
            pass
        assert frame == (PING, 0x1, 0, b"anybody?")
        peer.status(14, b"bye")

    thread = script(peer, part)
    with call.exchange():
        call.send([(b"begin",)])
    while call.look():
        pass
    join_script(peer, thread)
    with call.exchange(), pytest.raises(CallEnded, match="bye"):
        call.receive()


def test_an_idle_connection_whose_peer_is_silent_is_given_up(
    peer: Peer, call: DirectCall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_call, "_PING_AFTER", 0.0)
    monkeypatch.setattr(direct_call, "_PING_TIMEOUT", 0.05)
    thread = script(peer, peer.accept)
    with call.exchange():
        call.send([(b"begin",)])
    while call.look():
        pass
    join_script(peer, thread)
    with call.exchange(), pytest.raises(CallEnded, match="ping"):
        call.receive()


def test_a_peer_that_has_just_spoken_is_taken_to_be_there(
    peer: Peer, call: DirectCall, monkeypatch: pytest.MonkeyPatch
) -> None:
    def part() -> None:
        peer.accept()
        assert peer.message() == (b"begin", [10])
        peer.send(DATA, 0, 1, prefixed(b"reply"))
        peer.status(14, b"bye")

    thread = script(peer, part)
    with call.exchange():
        assert ask(call) == b"reply"
    join_script(peer, thread)
    monkeypatch.setattr(direct_call, "_FRESH", 60.0)
    for _ in range(100):
        assert call.look()
    monkeypatch.setattr(direct_call, "_FRESH", 0.0)
    while call.look():
        pass
    with call.exchange(), pytest.raises(CallEnded, match="bye"):
        call.receive()


def test_a_status_keeps_its_details(peer: Peer, call: DirectCall) -> None:
    for value in (b"\0raw\xff", base64.b64encode(b"raw\xff"), base64.b64encode(b"raw\xff").rstrip(b"=")):
        one = DirectCall([Route(peer.address, ())], "/x/Y", LIMIT)

        def part(value: bytes = value) -> None:
            peer.accept()
            peer.status(8, b"no %22room%22", ("grpc-status-details-bin", value))

        thread = script(peer, part)
        with one.exchange(), pytest.raises(CallEnded) as ended:
            ask(one)
        join_script(peer, thread)
        peer.connection.close()
        one.close()
        assert ended.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert ended.value.details() == 'no "room"'
        assert [tuple(entry) for entry in ended.value.trailing_metadata()] == [("grpc-status-details-bin", b"raw\xff")]


def test_a_header_block_may_be_torn_into_frames(peer: Peer, call: DirectCall) -> None:
    block = literal(("grpc-status", b"9"), ("grpc-message", b"later"))

    def part() -> None:
        peer.accept()
        peer.send(HEADERS, 0x1 | 0x8 | 0x20, 1, b"\x02" + bytes(5) + block[:7] + bytes(2))  # padded, with a priority
        peer.send(CONTINUATION, 0, 1, block[7:20])
        peer.send(CONTINUATION, 0x4, 1, block[20:])

    thread = script(peer, part)
    with call.exchange(), pytest.raises(CallEnded, match="FAILED_PRECONDITION: later"):
        ask(call)
    join_script(peer, thread)


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ((RESET, 0, 1, (8).to_bytes(4, "big")), grpc.StatusCode.CANCELLED),
        ((RESET, 0, 1, (7).to_bytes(4, "big")), grpc.StatusCode.UNAVAILABLE),
        ((RESET, 0, 1, (2).to_bytes(4, "big")), grpc.StatusCode.INTERNAL),
        ((GOAWAY, 0, 0, bytes(8) + b"full"), grpc.StatusCode.UNAVAILABLE),
        ((HEADERS, 0x5, 1, b"\x8d"), grpc.StatusCode.UNIMPLEMENTED),  # :status 404
        ((HEADERS, 0x5, 1, b"\x08\x03503"), grpc.StatusCode.UNAVAILABLE),
        ((HEADERS, 0x5, 1, OK), grpc.StatusCode.INTERNAL),  # no status of gRPC's
        ((DATA, 0x1, 1, b""), grpc.StatusCode.INTERNAL),
        ((DATA, 0, 1, b"\1" + bytes(4)), grpc.StatusCode.INTERNAL),  # compressed
        ((DATA, 0, 1, prefixed(b"")[:1] + (LIMIT + 1).to_bytes(4, "big")), grpc.StatusCode.RESOURCE_EXHAUSTED),
        ((DATA, 0, 3, b"x"), grpc.StatusCode.INTERNAL),  # of a stream that was never opened
        ((DATA, 0x8, 1, b"\xff"), grpc.StatusCode.INTERNAL),  # more padding than frame
        ((SETTINGS, 0, 0, b"12345"), grpc.StatusCode.INTERNAL),
        ((WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"), grpc.StatusCode.INTERNAL),
        ((CONTINUATION, 0x4, 1, b""), grpc.StatusCode.INTERNAL),
        ((SETTINGS, 0, 0, bytes(70_000)), grpc.StatusCode.INTERNAL),
    ],
)
def test_every_bad_end_has_its_status(
    peer: Peer, call: DirectCall, frame: tuple[int, int, int, bytes], code: grpc.StatusCode
) -> None:
    def part() -> None:
        peer.accept()
        peer.send(*frame)

    thread = script(peer, part)
    with call.exchange(), pytest.raises(CallEnded) as ended:
        ask(call)
    join_script(peer, thread)
    assert ended.value.code() is code
    assert not call.look()
    failure(ended.value)  # understands it


def test_a_connection_that_breaks_is_unavailable(peer: Peer, call: DirectCall) -> None:
    def part() -> None:
        peer.accept()
        peer.connection.close()

    thread = script(peer, part)
    with call.exchange(), pytest.raises(CallEnded, match="UNAVAILABLE"):
        ask(call, bytes(100_000))
    join_script(peer, thread)


def test_nobody_there_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    call = DirectCall([Route(address, ())], "/x/Y", LIMIT)
    with call.exchange(), pytest.raises(CallEnded, match="refused"):
        ask(call)


@pytest.mark.parametrize("sending", [True, False])
def test_another_thread_can_end_it(peer: Peer, call: DirectCall, sending: bool) -> None:
    thread = script(peer, peer.accept)
    timer = threading.Timer(0.1, call.cancel)
    timer.start()
    with call.exchange(), pytest.raises(CallEnded, match="CANCELLED"):
        ask(call, bytes(10_000_000 if sending else 10))  # more than the peer lets in
    timer.join()
    join_script(peer, thread)
    assert not call.look()


def test_a_peer_that_writes_huffman_codes_is_left_to_grpc(peer: Peer, call: DirectCall) -> None:
    def part() -> None:
        peer.accept()
        peer.send(HEADERS, 0x4, 1, b"\x88\x40\x01a\x81\xff")

    thread = script(peer, part)
    with call.exchange(), pytest.raises(CallEnded, match="UNAVAILABLE"):
        ask(call)
    join_script(peer, thread)
    assert call.is_foreign


def test_headers_are_read_as_they_were_written() -> None:
    headers = ((":path", "/x"), ("authorization", "Bearer " + "x" * 1024), ("empty", ""), ("l", "y" * 127))
    assert read_headers(write_headers(headers)) == {name: value.encode() for name, value in headers}


@pytest.mark.parametrize(
    "block",
    [b"\x80", b"\xbe", b"\x7e\x01a", b"\x40\x05abc", b"\x40", b"\x40\x01", b"\xff\xff\xff\xff\xff\xff", b"\x3f"],
)
def test_header_blocks_that_are_damaged_or_need_a_table_are_refused(block: bytes) -> None:
    with pytest.raises(UnknownEncodingError):
        header_block.read_headers(block)
