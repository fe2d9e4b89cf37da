"""The HTTP/2 of both ends, without sockets: one end against the other, and what it makes of messages."""

import struct
from collections import deque
from collections.abc import Mapping
from typing import Any

import pytest
from gemps import http2
from gemps.header_block import read_headers, write_headers
from gemps.http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PADDED,
    PING,
    SETTINGS,
    WINDOW_UPDATE,
    BadMessageError,
    Http2,
    ProtocolError,
    frame,
    frame_header,
    pieces_of,
    take,
)
from hypothesis import given, settings
from hypothesis import strategies as st

BUFFER = 256
LIMIT = 1 << 20
INITIAL_WINDOW, MAX_FRAME = 4, 5


def cut(core: Http2, message: list[memoryview], most: int) -> list[list[memoryview]]:
    """Frames of at most `most` bytes, as if the peer took no larger ones."""
    largest = core._max_frame
    core._max_frame = min(most, largest)
    try:
        return core.cut(message)
    finally:
        core._max_frame = largest


class End:
    """One end: what it hears goes into `heard`, whole messages into `messages`."""

    def __init__(self, *, window: int = 1 << 20, buffer_bytes: int = BUFFER, **options: Any) -> None:
        self.core = Http2(self, limit=LIMIT, window=window, buffer_bytes=buffer_bytes, **options)
        self.heard: list[object] = []
        self.messages: list[bytes] = []
        self.out = bytearray()
        self.is_server = False
        self.begin = b""  # of a message whose end was placed

    def hear(self, data: bytes) -> None:
        """All of it, in as many parts as there is space for."""
        self._collect(0)
        while data:
            space = self.core.space()
            count = min(len(space), len(data))
            assert count, "it takes no more"
            space[:count] = data[:count]
            data = data[count:]
            self._collect(count)

    def _collect(self, count: int) -> None:
        self.core.received(count)
        while self.core.has_message:
            self.messages.append(self.begin + bytes(self.core.message))
            self.begin = b""
            self.core.release()
            self.core.received(0)
        self.out += self.core.answers
        self.core.answers.clear()

    def say(self, message: list[memoryview], most: int) -> None:
        """As much of it as may be sent."""
        for one in cut(self.core, message, most):
            self.out += b"".join(one)

    def place(self, begin: memoryview, size: int) -> tuple[int, memoryview] | None:
        """http2.Place: all but three bytes of a message go elsewhere, if these have come."""
        assert not self.begin
        if len(begin) < 3:
            return None
        self.begin = bytes(begin[:3])
        return 3, memoryview(bytearray(size - 3))

    def said(self) -> bytes:
        said = bytes(self.out)
        self.out.clear()
        return said

    # -- http2.Listener

    def headers(self, stream: int, headers: Mapping[str, bytes], *, last: bool) -> None:
        self.heard.append((stream, dict(headers), last))
        if self.is_server:
            self.core.open(stream)

    def half_closed(self) -> None:
        self.heard.append("half-closed")

    def reset(self, stream: int, code: int) -> None:
        self.heard.append(("reset", stream, code))

    def going_away(self, last_stream: int, text: bytes) -> None:
        self.heard.append(("going away", last_stream, text))

    def pong(self) -> None:
        self.heard.append("pong")


def connected(client: End, server: End) -> None:
    """Both have begun, and the client has a call; what they say in answer is still to be carried."""
    server.is_server = True
    for end in (client, server):
        end.core.begin()
    client.core.open(1)
    client.core.answers += frame(HEADERS, END_HEADERS, 1, write_headers(((":path", "/x"),)))
    for end in (client, server):
        end.hear(b"")
    server.hear(client.said())
    assert server.core.stream == 1


def carry(data: bytes, to: End, cuts: list[int]) -> None:
    """In parts of these lengths, over and over."""
    while data:
        cut = cuts[0]
        cuts.append(cuts.pop(0))
        to.hear(data[:cut])
        data = data[cut:]


messages = st.lists(st.one_of(st.binary(max_size=40), st.integers(0, 60_000).map(lambda n: bytes([n % 251]) * n)))


@settings(deadline=None, max_examples=50)
@given(
    to_server=messages,
    to_client=messages,
    windows=st.tuples(st.integers(1 << 17, 1 << 20), st.integers(1 << 17, 1 << 20)),
    most=st.sampled_from([1, 7, 1000, 16_384, 1 << 24]),
    cuts=st.lists(st.sampled_from([1, 8, 9, 10, 100, 5_000, 70_000]), min_size=1, max_size=5),
    buffers=st.tuples(st.integers(160, 400), st.sampled_from([160, 16 << 10, 64 << 10])),
    places=st.booleans(),
)
def test_messages_arrive_intact_both_ways(
    to_server: list[bytes],
    to_client: list[bytes],
    windows: tuple[int, int],
    most: int,
    cuts: list[int],
    buffers: tuple[int, int],
    places: bool,
) -> None:
    spare = deque[memoryview](maxlen=2)
    client = End(window=windows[0], buffer_bytes=buffers[0])
    server = End(window=windows[1], buffer_bytes=buffers[1], spare=spare)
    connected(client, server)
    if places:
        client.core.place, server.core.place = client.place, server.place
    if most < 1000:  # as many frames as bytes: shorter ones then
        to_server, to_client = [one[:300] for one in to_server], [one[:300] for one in to_client]
    going = [
        [pieces_of((one[: len(one) // 3], one[len(one) // 3 :])) for one in some] for some in (to_server, to_client)
    ]
    for _ in range(1000):
        for end, left in ((client, going[0]), (server, going[1])):
            while left and (end.say(left[0], most) or not left[0]):
                left.pop(0)
        if not (client.out or server.out):
            break
        carry(client.said(), server, cuts)
        carry(server.said(), client, cuts)
    assert going == [[], []], "the windows were not opened again"
    assert server.messages == to_server
    assert client.messages == to_client


def test_a_window_that_is_used_up_is_given_back() -> None:
    client, server = End(), End(window=1 << 17)
    connected(client, server)
    client.hear(server.said())
    left = pieces_of((bytes(1 << 19),))
    rounds = 0
    while left:
        before = sum(one.nbytes for one in left)
        client.say(left, 1 << 24)
        assert before - sum(one.nbytes for one in left) <= 1 << 17
        server.hear(client.said())
        client.hear(server.said())
        rounds += 1
    assert server.messages == [bytes(1 << 19)]
    assert rounds >= 4


def test_frames_keep_to_both_windows_and_to_the_largest_frame() -> None:
    end = End()
    end.core.open(1)
    end.hear(frame(SETTINGS, 0, 0, struct.pack(">HIHI", INITIAL_WINDOW, 100_000, MAX_FRAME, 20_000)))
    left = pieces_of((bytes(200_000),))

    def sizes(most: int = 1 << 24) -> list[int]:
        return [sum(piece.nbytes for piece in one[1:]) for one in cut(end.core, left, most)]

    assert sizes() == [20_000, 20_000, 20_000, 5_535]  # the connection's window
    assert sizes() == []
    end.hear(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 20)))
    assert sizes(30_000) == [20_000, 14_465]  # the stream's
    end.hear(frame(WINDOW_UPDATE, 0, 3, struct.pack(">I", 1 << 20)))  # another's
    assert sizes() == []
    end.hear(frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, 100_010)))
    assert sizes(3) == [3, 3, 3, 1]
    end.hear(frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, 0)))  # less than what was sent
    end.hear(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 100_010)))
    assert sizes() == []
    end.hear(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 1)))
    assert sizes() == [1]


@given(pieces=st.lists(st.binary(max_size=3000), max_size=3), size=st.sampled_from([0, 1, 16_000, 80 << 10, 81 << 10]))
def test_a_small_message_in_one_frame_is_what_cut_makes_of_it(pieces: list[bytes], size: int) -> None:
    end, other = End(), End()
    for one in (end, other):
        one.core.open(1)
        one.hear(frame(SETTINGS, 0, 0, struct.pack(">HIHI", INITIAL_WINDOW, 100_000, MAX_FRAME, 90_000)))
        one.hear(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 100_000)))
    message = (*pieces, memoryview(bytes(size)))
    found = end.core.frame_of(*message)
    if found is None:
        assert sum(map(len, message)) > 80 << 10
        assert end.core._window == other.core._window
        return
    (frames,) = other.core.cut(pieces_of(message))
    assert found == b"".join(frames)
    assert (end.core._window, end.core._stream_window) == (other.core._window, other.core._stream_window)


def test_a_small_message_goes_in_one_frame_only_where_the_peer_takes_that() -> None:
    end = End()
    end.core.open(1)
    assert end.core.frame_of(bytes(16_380)) is None  # the peer has allowed frames of 16 384
    for _ in range(4):
        assert end.core.frame_of(bytes(16_000)) is not None
    assert end.core.frame_of(bytes(16_000)) is None  # nor so much at once
    assert end.core.frame_of(bytes(65_535 - 4 * 16_005 - 5)) is not None
    assert end.core.frame_of(b"") is None


def test_data_of_no_call_is_refused() -> None:
    end = End()
    with pytest.raises(ProtocolError, match="not asked for"):
        end.hear(frame(DATA, 0, 0, http2.prefix(3) + b"one"))


def test_what_was_cut_and_never_sent_leaves_its_room_to_the_next_call() -> None:
    end = End()
    end.core.open(1)
    left = pieces_of((bytes(100_000),))
    frames = cut(end.core, left, 10_000)
    assert end.core.cut(left) == []
    end.core.put_back(frames[3:])
    end.core.open(3)
    again = end.core.cut(pieces_of((bytes(100_000),)))
    assert sum(piece.nbytes for one in again for piece in one[1:]) == 65_535 - 30_000


def test_what_is_not_wanted_waits_but_what_stands_before_it_is_heard() -> None:
    end = End()
    end.core.open(1)
    end.core.wants_data = False
    ping, one = frame(PING, 0, 0, b"12345678"), frame(DATA, 0, 1, http2.prefix(3) + b"one")
    end.hear(ping + one + ping)
    assert end.said() == frame(PING, http2.ACK, 0, b"12345678")
    assert end.messages == []
    end.core.wants_data = True
    end.core.received(0)
    assert bytes(end.core.message) == b"one"
    end.core.received(0)
    assert not end.core.answers  # a message that is wanted is looked at first
    end.core.wants_data = False
    end.core.received(0)
    assert end.core.answers == frame(PING, http2.ACK, 0, b"12345678")
    assert bytes(end.core.message) == b"one"


def test_the_buffer_is_all_that_is_taken_of_what_is_not_wanted() -> None:
    end = End()
    end.core.open(1)
    end.core.wants_data = False
    taken = 0
    while space := end.core.space():
        taken += len(space)
        space[:] = (frame(DATA, 0, 1, http2.prefix(9_000) + bytes(9_000)))[: len(space)]
        end.core.received(len(space))
    assert taken == BUFFER
    assert end.core._message.nbytes == 0


def test_a_large_frame_is_read_to_where_it_belongs() -> None:
    end = End()
    end.core.open(1)
    end.hear(frame_header(100_005, DATA, 0, 1) + http2.prefix(100_000))
    assert len(end.core.space()) == 100_000
    assert end.core.reads_directly
    end.hear(bytes(99_000))
    assert len(end.core.space()) == BUFFER
    assert not end.core.reads_directly  # the rest is worth no call of its own
    end.hear(bytes(1_000) + frame(PING, 0, 0, bytes(8)))
    assert end.messages == [bytes(100_000)]
    assert end.said().endswith(frame(PING, http2.ACK, 0, bytes(8)))


def test_several_messages_of_one_frame_come_one_after_the_other() -> None:
    end = End()
    end.core.open(1)
    end.hear(frame(DATA, END_STREAM, 1, http2.prefix(1) + b"a" + http2.prefix(0) + http2.prefix(2) + b"bc"))
    assert end.messages == [b"a", b"", b"bc"]
    assert end.heard == ["half-closed"]


def test_a_padded_frame_may_come_byte_by_byte() -> None:
    end = End()
    end.core.open(1)
    padded = frame(DATA, PADDED, 1, b"\x05" + http2.prefix(3) + b"one" + bytes(5))
    for byte in padded + frame(DATA, 0, 1, http2.prefix(3) + b"two"):
        end.hear(bytes([byte]))
    assert end.messages == [b"one", b"two"]


def test_what_comes_of_a_call_that_is_over_is_passed_over() -> None:
    end = End()
    end.is_server = True
    end.hear(frame(HEADERS, END_HEADERS, 1))
    end.heard.clear()
    whole = frame(DATA, END_STREAM, 1, http2.prefix(5000) + bytes(5000))
    end.hear(whole[:100])
    end.core.open(0)
    end.hear(whole[100:] + whole)
    assert (end.messages, end.heard) == ([], [])
    end.core.open(3)
    end.hear(whole + frame(DATA, 0, 3, http2.prefix(1) + b"x"))
    assert (end.messages, end.heard) == ([b"x"], [])


@pytest.mark.parametrize("directly", [False, True])
def test_a_message_that_is_displaced_leaves_its_place_alone(directly: bool) -> None:
    end = End()
    place = memoryview(bytearray(100_000))
    end.core.open(1)
    end.core.place = lambda begin, size: (3, place[: size - 3])
    message = bytes(range(250)) * 240
    begun = http2.prefix(len(message)) + message
    end.hear(frame_header(len(begun), DATA, 0, 1) + begun[:200])
    if directly:
        end.hear(begun[200:10_000])
    end.core.displace()
    before = bytes(place)
    assert before[:100] == message[3:103]
    end.hear(begun[10_000:] if directly else begun[200:])
    assert end.messages == [message[3:]]
    assert bytes(place) == before


def test_a_message_that_is_there_stays_in_its_place() -> None:
    end = End()
    place = memoryview(bytearray(100_000))
    end.core.open(1)
    end.core.place = lambda begin, size: (3, place[: size - 3])
    message = bytes(range(250)) * 240
    framed = frame(DATA, 0, 1, http2.prefix(len(message)) + message)
    while framed:
        space = end.core.space()
        count = min(len(space), len(framed))
        space[:count] = framed[:count]
        end.core.received(count)
        framed = framed[count:]
    end.core.displace()
    assert end.core.message.obj is place.obj
    assert bytes(place[: len(message) - 3]) == message[3:]


def test_memory_goes_to_whoever_begins_a_message() -> None:
    spare = deque[memoryview](maxlen=1)
    one, other = End(spare=spare), End(spare=spare)
    for end in (one, other):
        end.core.open(1)
    one.hear(frame(DATA, 0, 1, http2.prefix(5000) + bytes(5000)))
    one.core.forget_memory()
    assert [memory.nbytes for memory in spare] == [5000]
    other.hear(frame_header(4005, DATA, 0, 1) + http2.prefix(4000))
    assert not spare
    other.core.forget_memory()  # not now: a message has begun
    assert not spare
    other.hear(bytes(4000))
    assert other.messages == [bytes(4000)]


@pytest.mark.parametrize(
    ("said", "is_too_large"),
    [(b"\0" + struct.pack(">I", LIMIT + 1), True), (b"\1" + struct.pack(">I", 1), False)],
)
def test_messages_that_cannot_be_taken_take_no_memory(said: bytes, is_too_large: bool) -> None:
    end = End()
    end.core.open(1)
    with pytest.raises(BadMessageError) as error:
        end.hear(frame(DATA, 0, 1, said))
    assert error.value.is_too_large == is_too_large
    assert end.core._message.nbytes == 0


@settings(deadline=None, max_examples=300)
@given(
    noise=st.lists(
        st.one_of(
            st.binary(max_size=50),
            st.builds(
                frame,
                st.integers(0, 10),
                st.integers(0, 255),
                st.integers(0, 4),
                st.one_of(st.binary(max_size=30), st.just(write_headers(((":path", "/"),)))),
            ),
        ),
        max_size=12,
    ),
    wanted=st.booleans(),
)
def test_noise_is_heard_or_is_a_protocol_error(noise: list[bytes], wanted: bool) -> None:
    """Nothing else is raised, nothing goes round in circles, and no more memory is taken than a message may have."""
    end = End()
    end.core.open(1)
    end.core.wants_data = wanted
    try:
        for one in noise:
            left = one
            while left and (space := end.core.space()):
                count = min(len(space), len(left))
                space[:count] = left[:count]
                left = left[count:]
                end._collect(count)
    except ProtocolError:
        pass
    assert end.core._message.nbytes <= LIMIT


# -- pieces ------------------------------------------------------------------------------------------------------------


@given(pieces=st.lists(st.binary(max_size=20), max_size=6), counts=st.lists(st.integers(0, 30), max_size=8))
def test_taking_pieces_keeps_their_bytes_in_order(pieces: list[bytes], counts: list[int]) -> None:
    views = [memoryview(one) for one in pieces]
    whole, taken = b"".join(pieces), b""
    for count in counts:
        part = b"".join(take(views, count))
        assert len(part) == min(count, len(whole) - len(taken))
        taken += part
        assert taken + b"".join(views) == whole


def test_a_message_begins_with_its_size_and_has_no_empty_pieces() -> None:
    pieces = pieces_of((b"", bytearray(b"ab"), memoryview(struct.pack("<2f", 1, 2)).cast("f"), b""))
    assert [one.nbytes for one in pieces] == [5, 2, 8]
    assert b"".join(pieces) == b"\0\0\0\0\x0aab" + struct.pack("<2f", 1, 2)
    assert b"".join(pieces_of(())) == bytes(5)


@given(
    length=st.integers(0, (1 << 24) - 1), kind=st.integers(0, 255), flags=st.integers(0, 255), stream=st.integers(0, 9)
)
def test_a_frames_head_says_what_it_was_told(length: int, kind: int, flags: int, stream: int) -> None:
    head = frame_header(length, kind, flags, stream)
    assert len(head) == http2.FRAME_HEADER
    assert int.from_bytes(head[:3], "big") == length
    assert (head[3], head[4], int.from_bytes(head[5:], "big")) == (kind, flags, stream)


@given(headers=st.dictionaries(st.text("abc-:", min_size=1, max_size=200), st.binary(max_size=400), max_size=5))
def test_headers_are_read_as_written(headers: dict[str, bytes]) -> None:
    assert read_headers(write_headers(headers.items())) == headers
