"""The lane's frames and states, held to what lane.proto says of them: every kind in every state, at both ends."""

import struct
from collections.abc import Iterator
from itertools import pairwise, product

import pytest
from gemps.lane import Frame, IllegalFrameError, Kind, Lane, Side, State
from gemps.limits import FIRST_MESSAGE_BYTES, MESSAGE_BYTES
from hypothesis import given, settings
from hypothesis import strategies as st

MIB = 1 << 20
# lane.proto's table of frames: the least and the most bytes.
BYTES = {
    Kind.HELLO: (1, 4096),
    Kind.WELCOME: (0, 4096),
    Kind.MESSAGE: (1, 2_162_688),
    Kind.END: (0, 8192),
    Kind.CANCEL: (0, 0),
    Kind.PING: (8, 8),
    Kind.PONG: (8, 8),
}
# Its table of states, and the sentences below it: the state that follows each legal frame.
FROM_WORKER = {
    (State.HELLO, Kind.HELLO): State.HELLO,
    (State.IDLE, Kind.MESSAGE): State.REPLYING,
    (State.IDLE, Kind.PING): State.IDLE,
    (State.IDLE, Kind.CANCEL): State.CLOSED,
    (State.COMMITTING, Kind.MESSAGE): State.COMMITTING,
    (State.COMMITTING, Kind.CANCEL): State.CLOSED,
    (State.REPLYING, Kind.CANCEL): State.CLOSED,
}
# A worker that goes on early: its server leaves this unread until the state is another one.
EARLY = (State.REPLYING, Kind.MESSAGE)
FROM_SERVER = {
    (State.HELLO, Kind.WELCOME): State.IDLE,
    (State.HELLO, Kind.END): State.CLOSED,
    (State.IDLE, Kind.PONG): State.IDLE,
    (State.IDLE, Kind.END): State.CLOSED,
    (State.COMMITTING, Kind.END): State.CLOSED,
    (State.REPLYING, Kind.MESSAGE): State.REPLYING,
    (State.REPLYING, Kind.PONG): State.REPLYING,  # the worker's PING and its next commit may come together
    (State.REPLYING, Kind.END): State.CLOSED,
}
EVERYTHING = [
    pytest.param(side, state, kind, id=f"{kind.name}-to-the-{side.value}-in-{state.name}")
    for side, state, kind in product(Side, State, Kind)
]
# How a connection gets into a state: frames (sender, kind), and what the messages mean.
WAYS: dict[State, tuple[tuple[Side, Kind] | State, ...]] = {
    State.HELLO: (),
    State.IDLE: ((Side.WORKER, Kind.HELLO), (Side.SERVER, Kind.WELCOME)),
}
WAYS[State.REPLYING] = (*WAYS[State.IDLE], (Side.WORKER, Kind.MESSAGE))
WAYS[State.COMMITTING] = (*WAYS[State.REPLYING], (Side.SERVER, Kind.MESSAGE), State.COMMITTING)
WAYS[State.CLOSED] = (*WAYS[State.IDLE], (Side.WORKER, Kind.CANCEL))


def frame(kind: int, body: bytes) -> bytes:
    return struct.pack("<IB", len(body), kind) + body


def body_of(kind: Kind) -> bytes:
    return bytes(BYTES[kind][0])


def lane_in(side: Side, state: State, buffer_bytes: int = 100 << 10) -> Lane:
    lane = Lane(side, buffer_bytes)
    for step in WAYS[state]:
        if isinstance(step, State):
            lane.enter(step)
        elif step[0] is side:
            lane.header(step[1], len(body_of(step[1])))
        else:
            assert put(lane, frame(step[1], body_of(step[1]))) is not None
    assert lane.state is state
    return lane


def put(lane: Lane, data: bytes) -> Frame | None:
    """Receive bytes. Returns the next frame if it is complete."""
    space = lane.space
    assert len(data) <= len(space)
    space[: len(data)] = data
    return lane.next_frame(len(data))


def frames(lane: Lane, data: bytes) -> Iterator[Frame]:
    """Receive bytes. Returns all frames that are then complete."""
    found = put(lane, data)
    while found is not None:
        yield found
        found = lane.next_frame() if lane.has_more else None


@pytest.mark.parametrize(("side", "state", "kind"), EVERYTHING)
def test_a_frame_is_legal_where_the_contract_says_so(side: Side, state: State, kind: Kind) -> None:
    lane = lane_in(side, state)
    following = (FROM_WORKER if side is Side.SERVER else FROM_SERVER).get((state, kind))
    if (side, (state, kind)) == (Side.SERVER, EARLY):
        assert put(lane, frame(kind, body_of(kind))) is None
        assert (lane.is_blocked, lane.has_more, lane.state) == (True, False, state)
    elif following is None:
        with pytest.raises(IllegalFrameError, match=f"kind {kind.value} in state {state.name}"):
            put(lane, frame(kind, body_of(kind)))
        assert lane.state is state
    else:
        found = put(lane, frame(kind, body_of(kind)))
        assert found is not None
        assert (found.kind, bytes(found.body), found.size) == (kind, body_of(kind), len(body_of(kind)))
        assert lane.state is following


@pytest.mark.parametrize(("side", "state", "kind"), EVERYTHING)
def test_a_frame_is_sent_where_the_contract_says_so(side: Side, state: State, kind: Kind) -> None:
    lane = lane_in(side, state)
    following = (FROM_WORKER | {EARLY: State.REPLYING} if side is Side.WORKER else FROM_SERVER).get((state, kind))
    if following is None:
        with pytest.raises(AssertionError, match=f"{kind.name} in state {state.name}"):
            lane.header(kind, 0)
        assert lane.state is state
    else:
        assert lane.header(kind, 7) == b"\x07\0\0\0" + bytes([kind])
        assert lane.state is following


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("number", [0, 8, 9, 71, 255])
@pytest.mark.parametrize("state", State)
def test_a_kind_that_nobody_knows_is_illegal(side: Side, state: State, number: int) -> None:
    lane = lane_in(side, state)
    with pytest.raises(IllegalFrameError, match=f"kind {number} in state"):
        put(lane, frame(number, b""))


@pytest.mark.parametrize(
    ("side", "state", "kind"),
    [(Side.SERVER, *key) for key in FROM_WORKER] + [(Side.WORKER, *key) for key in FROM_SERVER],
)
def test_a_size_beyond_either_border_is_illegal_before_its_bytes_come(side: Side, state: State, kind: Kind) -> None:
    least, most = BYTES[kind]
    if side is Side.SERVER and state is State.IDLE and kind is Kind.MESSAGE:
        most = FIRST_MESSAGE_BYTES
    for size, is_legal in ((least, True), (most, True), (least - 1, False), (most + 1, False), (2**32 - 1, False)):
        if size < 0:
            continue
        lane = lane_in(side, state)
        if is_legal:
            found = put(lane, struct.pack("<IB", size, kind))
            assert found is None or found.size == size == 0
        else:
            with pytest.raises(IllegalFrameError, match=f"{size} bytes"):
                put(lane, struct.pack("<IB", size, kind))


def test_what_begins_a_commit_fits_into_the_buffer() -> None:
    """The server of a small model has a small buffer, and nothing larger is announced to it."""
    for buffer_bytes in (4101, 20_000, 200_000):
        most = min(FIRST_MESSAGE_BYTES, buffer_bytes - 5)
        lane = lane_in(Side.SERVER, State.IDLE, buffer_bytes)
        assert [found.size for found in frames(lane, frame(Kind.MESSAGE, bytes(most)))] == [most]
        lane = lane_in(Side.SERVER, State.IDLE, buffer_bytes)
        with pytest.raises(IllegalFrameError):
            put(lane, struct.pack("<IB", most + 1, Kind.MESSAGE))


def test_frames_cut_at_every_byte_are_the_same_frames() -> None:
    sent = frame(Kind.PING, b"12345678") + frame(Kind.PING, b"abcdefgh") + frame(Kind.MESSAGE, b"hello")
    for cut in range(len(sent) + 1):
        lane = lane_in(Side.SERVER, State.IDLE)
        found: list[tuple[int, bytes]] = []
        for piece in (sent[:cut], sent[cut:]):
            found += [(one.kind, bytes(one.body)) for one in frames(lane, piece)]
        assert found == [(Kind.PING, b"12345678"), (Kind.PING, b"abcdefgh"), (Kind.MESSAGE, b"hello")]
        assert lane.state is State.REPLYING


@pytest.mark.parametrize("first", [5, 6, 1000, 1028, 1029, 5000, 20_000])
@pytest.mark.parametrize("size", [20_001, 500_000, MESSAGE_BYTES])
def test_a_message_larger_than_the_buffer_is_its_head_and_what_is_missing(first: int, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    sent = frame(Kind.MESSAGE, body)
    lane = lane_in(Side.SERVER, State.COMMITTING, 20_000)
    found = put(lane, sent[:first])
    if first < 5 + 1024:
        assert found is None  # its chunk may begin behind what is here
        found = put(lane, sent[first : 5 + 1024])
        first = 5 + 1024
    assert found is not None
    assert (found.kind, found.size) == (Kind.MESSAGE, size)
    assert found.body == sent[5:first]
    assert lane.missing == len(sent) - first
    lane.missing = 0  # read elsewhere
    assert [one.kind for one in frames(lane, frame(Kind.CANCEL, b""))] == [Kind.CANCEL]


def test_a_message_that_just_fits_is_given_whole() -> None:
    lane = lane_in(Side.SERVER, State.COMMITTING, 20_000)
    body = bytes(20_000 - 5)
    assert put(lane, frame(Kind.MESSAGE, body)[:-1]) is None
    found = put(lane, b"\0")
    assert found is not None
    assert bytes(found.body) == body
    assert lane.missing == 0


def test_the_buffers_end_is_no_end() -> None:
    """What is left of a frame moves to the front, once the bodies before it have been taken."""
    lane = lane_in(Side.SERVER, State.COMMITTING, 4200)
    sent = b"".join(frame(Kind.MESSAGE, bytes([number]) * 1000) for number in range(1, 40))
    found: list[bytes] = []
    while sent:
        count = min(len(lane.space), len(sent))
        assert count > 0
        found += [bytes(one.body) for one in frames(lane, sent[:count])]
        sent = sent[count:]
    assert found == [bytes([number]) * 1000 for number in range(1, 40)]


@pytest.mark.parametrize("held", [0, 3, 5, 900])
def test_a_larger_buffer_keeps_what_has_come(held: int) -> None:
    lane = lane_in(Side.SERVER, State.COMMITTING, 4101)
    sent = frame(Kind.MESSAGE, b"m" * 60_000)
    assert [bytes(one.body) for one in frames(lane, frame(Kind.MESSAGE, b"before") + sent[:held])] == [b"before"]
    lane.grow(70_000)
    assert [bytes(one.body) for one in frames(lane, sent[held:])] == [b"m" * 60_000]


@pytest.mark.parametrize("after", [State.COMMITTING, State.IDLE])
@pytest.mark.parametrize("received", [3, 5, 9, 30])
def test_a_message_that_comes_early_is_read_once_its_turn_has_come(received: int, after: State) -> None:
    """It is then read by the rules of the new state, with the part of it that has come."""
    lane = lane_in(Side.SERVER, State.REPLYING)
    sent = frame(Kind.MESSAGE, b"chunk") + frame(Kind.MESSAGE, b"and the footer")
    found = list(frames(lane, sent[:received]))
    assert not found
    assert lane.is_blocked == (received >= 5)
    lane.enter(after)
    assert not lane.is_blocked
    first = lane.next_frame() if lane.has_more else None
    while first is None:
        first = put(lane, sent[received : received + 1])
        received += 1
    assert bytes(first.body) == b"chunk"
    assert lane.state is (State.COMMITTING if after is State.COMMITTING else State.REPLYING)


def test_turns_pass_only_as_the_contract_says() -> None:
    legal = {(State.REPLYING, State.COMMITTING), (State.REPLYING, State.IDLE), (State.COMMITTING, State.REPLYING)}
    for before, after in product((State.IDLE, State.COMMITTING, State.REPLYING), State):
        lane = lane_in(Side.SERVER, before)
        if (before, after) in legal:
            lane.enter(after)
            assert lane.state is after
        else:
            with pytest.raises(AssertionError, match=f"from {before.name} to {after.name}"):
                lane.enter(after)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("side", Side)
def test_nothing_is_legal_after_close(side: Side, state: State) -> None:
    lane = lane_in(side, state)
    lane.close()
    for kind in Kind:
        with pytest.raises(AssertionError):
            lane.header(kind, 8)
    with pytest.raises(IllegalFrameError):
        put(lane, frame(Kind.CANCEL if side is Side.SERVER else Kind.END, b""))


# A commit: its chunks' bodies (none: it is whole), and the bodies of its reply.
COMMITS = st.lists(
    st.tuples(st.lists(st.binary(min_size=1, max_size=3000), max_size=4), st.lists(st.binary(min_size=1), min_size=1)),
    min_size=1,
    max_size=4,
)


@settings(max_examples=200, deadline=None)
@given(
    commits=COMMITS, cuts=st.lists(st.integers(1, 4000), min_size=1, max_size=10), buffer_bytes=st.integers(4101, 9000)
)
def test_both_ends_agree_on_every_run_of_commits(
    commits: list[tuple[list[bytes], list[bytes]]], cuts: list[int], buffer_bytes: int
) -> None:
    worker, server = Lane(Side.WORKER, buffer_bytes), Lane(Side.SERVER, buffer_bytes)

    def travel(sender: Lane, receiver: Lane, kind: Kind, body: bytes) -> None:
        sent = sender.header(kind, len(body)) + body
        ends = [0]
        while ends[-1] < len(sent):
            ends.append(min(len(sent), ends[-1] + cuts[len(ends) % len(cuts)]))
        found: list[Frame] = []
        for start, stop in pairwise(ends):
            rest = sent[start:stop]
            while rest:  # the buffer may be nearly full
                count = min(len(rest), len(receiver.space))
                found += frames(receiver, rest[:count])
                rest = rest[count:]
        assert [(one.kind, bytes(one.body), one.size) for one in found] == [(kind, body, len(body))]

    travel(worker, server, Kind.HELLO, b"hello")
    travel(server, worker, Kind.WELCOME, b"")
    for chunks, replies in commits:
        travel(worker, server, Kind.MESSAGE, b"header")
        if chunks:
            travel(server, worker, Kind.MESSAGE, b"proceed")
            worker.enter(State.COMMITTING)
            server.enter(State.COMMITTING)
            for chunk in chunks:
                travel(worker, server, Kind.MESSAGE, chunk)
            worker.enter(State.REPLYING)
            server.enter(State.REPLYING)
        for reply in replies:
            travel(server, worker, Kind.MESSAGE, reply)
        worker.enter(State.IDLE)
        server.enter(State.IDLE)
        travel(worker, server, Kind.PING, b"12345678")
        travel(server, worker, Kind.PONG, b"12345678")
        assert worker.state is server.state is State.IDLE
    travel(worker, server, Kind.CANCEL, b"")
    assert worker.state is server.state is State.CLOSED
