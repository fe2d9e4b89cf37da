"""A connection of the commit port, against a caller that says every frame by itself: what HTTP/2 and gRPC ask of it."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import pairwise

import grpc
import pytest
import pytest_asyncio
from gem_server.service import commit_connection
from gem_server.service.commit_connection import CommitConnection
from gem_server.service.listener import MAX_RECEIVE_BYTES
from gemps import http2
from gemps.http2 import (
    ACK,
    CANCEL,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    REFUSED_STREAM,
    RESET,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.commit_peer import Frame, Handler, Peer, Stage, data, on_stage, opening, prefixed
from tests.server.commit_peer import settings as http2_settings

MIB = 1 << 20
FIRST_WINDOW = 65_535  # of RFC 9113, until the caller says otherwise


@pytest_asyncio.fixture
async def stage() -> AsyncIterator[Stage]:
    async with on_stage() as made:
        yield made


class Waiting:
    """A handler that waits until it is told, then says so; and how it ended."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.ended_by: type[BaseException] | None = None

    async def __call__(self, context: CommitConnection) -> None:
        await context.send_initial_metadata(())
        try:
            await self.go.wait()
        except BaseException as error:
            self.ended_by = type(error)
            raise
        await context.write(b"gone")


def window_update(more: int, stream: int = 0) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", more))


# -- the beginning -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", bytes(100), b"\x16\x03\x01" + bytes(97)])
async def test_what_does_not_speak_http2_is_hung_up_on(stage: Stage, word: bytes) -> None:
    peer = await stage.peer()
    await peer.send(word)
    # Besides what this end says first, nothing.
    assert (await peer.end())[3] == SETTINGS
    assert stage.calls == 0


async def test_a_preface_may_come_byte_by_byte(stage: Stage) -> None:
    peer = await stage.peer()
    for byte in PREFACE + http2_settings() + opening() + data(b"hello", last=True):
        await peer.send(bytes([byte]))
        await asyncio.sleep(0)
    assert await peer.message() == b"hello"
    assert await peer.status() == (0, "")


async def test_settings_are_acknowledged_and_say_that_headers_have_no_table(stage: Stage) -> None:
    peer = await stage.peer()
    await peer.begin()
    first = await peer.frame()
    assert first.kind == SETTINGS
    told = dict(struct.iter_unpack(">HI", first.payload))
    assert (told[1], told[2], told[3]) == (0, 0, 1)  # no table, no pushes, one call at a time
    assert (await peer.frame()).kind == WINDOW_UPDATE
    assert await peer.frame() == Frame(SETTINGS, ACK, 0, b"")


async def test_a_connection_without_a_call_is_closed_after_its_time(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_connection, "_WITHOUT_CALL", 0.1)
    silent, polite, busy = await stage.peer(), await stage.peer(), await stage.peer()
    await polite.begin()
    stage.handler = Waiting()
    await busy.begin()
    await busy.send(opening())
    await silent.end()
    await polite.end()
    await asyncio.sleep(0.1)
    assert stage.running == 1  # a call may last
    await busy.send(frame(RESET, 0, 1, CANCEL.to_bytes(4, "big")))
    await busy.end()  # and once it is over time runs again


# -- what is said while the handler does not read ----------------------------------------------------------------------


async def test_settings_and_pings_are_answered_while_the_handler_waits(stage: Stage) -> None:
    stage.handler = waiting = Waiting()
    peer = await stage.calling()
    assert await peer.answers_pings()
    await peer.send(http2_settings(initial_window=3))
    assert (await peer.next(SETTINGS)).flags == ACK
    await peer.send(frame(99, 0, 0, b"of a type that nobody knows"))
    assert await peer.answers_pings(b"12345678")
    await peer.send(http2_settings(initial_window=100))  # obeyed too: else its word would not fit
    waiting.go.set()
    assert await peer.message() == b"gone"


async def test_pings_are_answered_while_the_handler_reads_and_between_parts_of_a_message(stage: Stage) -> None:
    peer = await stage.calling()
    assert await peer.answers_pings()
    whole = prefixed(b"hello")
    for number, byte in enumerate(whole):
        await peer.send(frame(DATA, 0, 1, bytes([byte])))
        assert await peer.answers_pings(number.to_bytes(8, "big"))
    assert await peer.message() == b"hello"


async def test_what_nobody_asked_for_stays_with_the_caller(stage: Stage) -> None:
    stage.handler = waiting = Waiting()
    peer = await stage.calling()
    (connection,) = stage.port._connections
    taken = 0
    receive = connection._http2.received

    def counted(count: int) -> bool:
        nonlocal taken
        taken += count
        return receive(count)

    connection._http2.received = counted
    sent = await peer.pushes(data(bytes(9_000)), 64 * MIB)
    assert sent < 64 * MIB  # TCP has stopped it
    assert taken <= commit_connection._BUFFER
    waiting.go.set()
    assert await peer.message() == b"gone"
    assert (await peer.status())[0] == 0  # and the rest, of which the handler wanted nothing, is passed over
    assert (await peer.next(RESET)).stream == 1


@pytest.mark.parametrize("ahead", [0, 100, 20_000], ids=["nothing", "a little", "more than the buffer"])
async def test_a_call_that_ended_early_makes_room_for_the_next_one(stage: Stage, ahead: int) -> None:
    """Whatever of the first one is on its way is passed over."""

    async def refuse(context: CommitConnection) -> None:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now: 100 %")

    stage.handler = waiting = Waiting()
    peer = await stage.calling()
    if ahead:
        await peer.send(data(bytes(ahead)))
    await asyncio.sleep(0.01)
    waiting.go.set()
    assert await peer.message() == b"gone"
    assert await peer.status() == (0, "")
    stage.handler = refuse
    await peer.send(opening(3))
    assert await peer.status(3) == (9, "not%20now%3A%20100%20%25")


@pytest.mark.parametrize("ahead", [100, 20_000])
async def test_the_next_call_may_come_before_the_end_of_one_is_known(stage: Stage, ahead: int) -> None:
    """It lies in the server's buffer, or behind it, when that call ends."""
    peer = await stage.peer()
    await peer.begin()
    await peer.send(opening(incarnation=1), frame(DATA, 0, 1, prefixed(bytes(ahead))), opening(3), data(b"x", 3))
    assert (await peer.status())[0] == 14
    assert await peer.message() == b"x"


@pytest.mark.parametrize("size", [20, 100_000], ids=["small", "large"])
@pytest.mark.parametrize("at_once", [True, False])
async def test_what_follows_a_message_is_heard_while_the_handler_has_it(stage: Stage, size: int, at_once: bool) -> None:
    """The answer needs a window that the caller opens behind its request; and it may end its call there."""
    peer = await stage.calling(initial_window=0)
    more = window_update(1 << 20) + window_update(1 << 20, 1)
    await peer.send(data(bytes(size)) + more if at_once else data(bytes(size)))
    if not at_once:
        await asyncio.sleep(0.01)
        assert await peer.answers_pings()
        await peer.send(more)
    assert await peer.message() == bytes(size)
    await peer.send(data(bytes(size)), http2_settings(initial_window=0))
    assert await peer.message() == bytes(size)
    stage.handler = waiting = Waiting()
    await peer.send(frame(RESET, 0, 1, CANCEL.to_bytes(4, "big")), opening(3))
    await stage.until(lambda: stage.calls == 2 and stage.running == 1)
    await peer.send(frame(RESET, 0, 3, CANCEL.to_bytes(4, "big")))
    await stage.until(lambda: waiting.ended_by is not None)


# -- ends --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reads", [True, False])
async def test_the_end_of_a_connection_cancels_the_handler(stage: Stage, reads: bool) -> None:
    waiting = Waiting()
    if not reads:
        stage.handler = waiting
    peer = await stage.calling()
    peer.close()
    await stage.until(lambda: stage.running == 0)
    assert reads or waiting.ended_by is asyncio.CancelledError
    assert not stage.port._connections


@pytest.mark.parametrize("reads", [True, False])
async def test_a_reset_cancels_the_handler_and_the_connection_takes_another_call(stage: Stage, reads: bool) -> None:
    waiting = Waiting()
    if not reads:
        stage.handler = waiting
    peer = await stage.calling()
    await peer.send(frame(RESET, 0, 3, CANCEL.to_bytes(4, "big")))  # of a call that is not there
    assert await peer.answers_pings()
    assert stage.running == 1
    await peer.send(frame(RESET, 0, 1, CANCEL.to_bytes(4, "big")))
    await stage.until(lambda: stage.running == 0)
    assert reads or waiting.ended_by is asyncio.CancelledError
    stage.handler = echo_of(1)
    await peer.send(opening(3), data(b"again", 3))
    assert await peer.message() == b"again"
    assert await peer.status(3) == (0, "")


def echo_of(messages: int) -> Handler:
    async def some(context: CommitConnection) -> None:
        await context.send_initial_metadata(())
        for _ in range(messages):
            message = await context.read()
            assert isinstance(message, bytes | memoryview)
            await context.write(bytes(message))

    return some


async def test_a_reset_behind_a_message_ends_the_call_that_has_it(stage: Stage) -> None:
    async def keeping(context: CommitConnection) -> None:
        message = await context.read()
        assert isinstance(message, bytes | memoryview)
        await asyncio.Event().wait()

    for number, size in enumerate((20, 100_000)):
        stage.handler = keeping
        peer = await stage.peer()
        await peer.begin()
        await peer.send(opening(), data(bytes(size)), frame(RESET, 0, 1, CANCEL.to_bytes(4, "big")))
        await stage.until(lambda number=number: stage.calls == 2 * number + 1 and stage.running == 0)
        stage.handler = echo_of(1)
        await peer.send(opening(3), data(b"again", 3))
        assert await peer.message() == b"again"


async def test_a_call_that_is_reset_as_it_begins_leaves_nothing(stage: Stage) -> None:
    peer = await stage.peer()
    await peer.begin()
    reset = [opening(stream) + frame(RESET, 0, stream, bytes(4)) for stream in range(1, 201, 2)]
    await peer.send(*reset, opening(201), data(b"hello", 201))
    assert await peer.message() == b"hello"
    assert stage.running == 1


async def test_a_handler_whose_call_is_over_says_no_more(stage: Stage) -> None:
    """One that swallows its end cannot speak in the call that came next."""
    swallowed = asyncio.Event()

    async def stubborn(context: CommitConnection) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await swallowed.wait()
        for speak in (context.send_initial_metadata(()), context.write(b"here"), context.read()):
            with pytest.raises(asyncio.CancelledError):
                await speak
        await context.abort(grpc.StatusCode.INTERNAL, "never heard")

    stage.handler = stubborn
    peer = await stage.calling()
    stage.handler = echo_of(2)
    await peer.send(frame(RESET, 0, 1, CANCEL.to_bytes(4, "big")), opening(3), data(b"one", 3))
    assert await peer.message() == b"one"
    swallowed.set()
    await stage.until(lambda: stage.running == 1)
    await peer.send(data(b"two", 3))
    assert await peer.message() == b"two"
    assert await peer.status(3) == (0, "")


async def test_a_second_call_at_once_is_refused_and_a_later_one_served(stage: Stage) -> None:
    peer = await stage.calling()
    await peer.send(opening(3), data(b"lost", 3))
    assert await peer.next(RESET) == Frame(RESET, 0, 3, REFUSED_STREAM.to_bytes(4, "big"))
    await peer.send(data(b"first", last=True))
    assert await peer.message() == b"first"
    assert await peer.status() == (0, "")
    await peer.send(opening(5), data(b"third", 5, last=True))
    assert await peer.message() == b"third"
    assert await peer.status(5) == (0, "")


async def test_an_error_of_the_handler_is_a_status_without_its_words(stage: Stage) -> None:
    async def failing(_: CommitConnection) -> None:
        raise RuntimeError("a secret")

    stage.handler = failing
    peer = await stage.peer()
    await peer.begin()
    await peer.send(opening())
    code, message = await peer.status()
    assert code == 13
    assert "secret" not in message


async def test_details_go_as_base64(stage: Stage) -> None:
    async def refuse(context: CommitConnection) -> None:
        await context.abort(grpc.StatusCode.ABORTED, "later", (("grpc-status-details-bin", b"raw\xff"),))

    stage.handler = refuse
    peer = await stage.peer()
    await peer.begin()
    await peer.send(opening())
    assert (await peer.next(HEADERS)).headers[":status"] == "200"
    ending = (await peer.next(HEADERS)).headers
    assert ending["grpc-status-details-bin"] == "cmF3/w"
    assert ":status" not in ending
    # A call that ends before it began has all in one.
    await peer.send(opening(3, incarnation=1))
    ending = (await peer.next(HEADERS)).headers
    assert (ending[":status"], ending["grpc-status"]) == ("200", "14")


# -- messages ----------------------------------------------------------------------------------------------------------


async def test_messages_arrive_in_whatever_cuts(stage: Stage) -> None:
    messages = [b"", b"a", bytes(range(256)) * 5000, b"z" * 300, b"", bytes(range(251)) * 6000, b"end"]
    stream = b"".join(prefixed(one) for one in messages)
    peer = await stage.calling(initial_window=1 << 30)
    await peer.send(window_update(1 << 30))

    async def send() -> None:
        position, cut = 0, 1
        while position < len(stream):
            piece = stream[position : position + cut]
            if cut % 2:
                await peer.send(frame(DATA, PADDED, 1, b"\x03" + piece + bytes(3)))
            else:
                await peer.send(frame(DATA, 0, 1, piece))
            position += len(piece)
            cut = cut * 3 % 1_000_003 + 1
        await peer.send(frame(DATA, END_STREAM, 1))

    sending = asyncio.create_task(send())
    assert [await peer.message() for _ in messages] == messages
    await sending
    assert await peer.status() == (0, "")


async def test_headers_may_be_padded_have_a_priority_and_be_torn(stage: Stage) -> None:
    peer = await stage.peer()
    await peer.begin()
    block = opening()[9:]
    await peer.send(
        frame(HEADERS, PADDED | http2.PRIORITY, 1, b"\x02" + bytes(5) + block[:9] + bytes(2)),
        *(frame(CONTINUATION, 0, 1, block[at : at + 1]) for at in range(9, len(block))),
        frame(CONTINUATION, END_HEADERS, 1),
        data(b"hello"),
    )
    assert await peer.message() == b"hello"


@pytest.mark.parametrize("begun", [False, True], ids=["before the handler reads", "while it reads"])
@pytest.mark.parametrize(
    ("message", "status"),
    [
        (b"\0" + struct.pack(">I", MAX_RECEIVE_BYTES + 1), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (b"\1" + struct.pack(">I", 1) + b"x", grpc.StatusCode.INTERNAL),
    ],
    ids=["too large", "compressed"],
)
async def test_a_message_that_cannot_be_taken_ends_its_call_alone(
    stage: Stage, message: bytes, status: grpc.StatusCode, begun: bool
) -> None:
    peer = await stage.peer()
    await peer.begin()
    if begun:
        await peer.send(opening())
        await stage.until(lambda: stage.running == 1)
        await asyncio.sleep(0.01)
        await peer.send(frame(DATA, 0, 1, message))
    else:
        await peer.send(opening(), frame(DATA, 0, 1, message))
    assert (await peer.status())[0] == status.value[0]
    await stage.until(lambda: stage.running == 0)
    await peer.send(frame(DATA, 0, 1, bytes(100)), opening(3), data(bytes(60_000), 3, last=True))
    assert len(await peer.message()) == 60_000
    assert await peer.status(3) == (0, "")


@pytest.mark.parametrize(
    ("word", "code"),
    [
        (frame(HEADERS, END_HEADERS, 1, b"\x88\x40\x01a\x81\xff"), http2.COMPRESSION_ERROR),  # Huffman codes
        (frame(HEADERS, END_HEADERS, 1, b"\xbe"), http2.COMPRESSION_ERROR),  # an entry of a table
        (frame(HEADERS, END_HEADERS, 2, b""), http2.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 0, b""), http2.PROTOCOL_ERROR),
        (frame(DATA, 0, 1, b"x"), http2.PROTOCOL_ERROR),
        (frame(CONTINUATION, END_HEADERS, 1), http2.PROTOCOL_ERROR),
        (frame(HEADERS, 0, 1) + frame(PING, 0, 0, bytes(8)), http2.PROTOCOL_ERROR),
        (frame(HEADERS, 0, 1) + frame(CONTINUATION, END_HEADERS, 3), http2.PROTOCOL_ERROR),
        (frame(HEADERS, 0, 1, bytes(9_000)) + frame(CONTINUATION, 0, 1, bytes(9_000)), http2.PROTOCOL_ERROR),
        (frame(HEADERS, 0, 1, bytes(20_000)), http2.PROTOCOL_ERROR),
        (frame(SETTINGS, 0, 0, bytes(5)), http2.PROTOCOL_ERROR),
        (http2_settings(initial_window=1 << 31), http2.FLOW_CONTROL_ERROR),
        (window_update((1 << 31) - 1), http2.FLOW_CONTROL_ERROR),
        (opening() + opening(), http2.PROTOCOL_ERROR),  # the same number again
        (opening(3) + opening(1), http2.PROTOCOL_ERROR),
        (opening() + frame(DATA, PADDED, 1, b"\xff"), http2.PROTOCOL_ERROR),
    ],
)
async def test_what_is_no_http2_ends_the_connection_and_its_call(stage: Stage, word: bytes, code: int) -> None:
    peer = await stage.peer()
    await peer.begin()
    await peer.send(word)
    goodbye = await peer.next(GOAWAY)
    assert int.from_bytes(goodbye.payload[4:8], "big") == code
    await peer.end()
    await stage.until(lambda: stage.running == 0 and not stage.port._connections)


async def test_memory_for_messages_is_shared_and_used_again(stage: Stage) -> None:
    peers = [await stage.calling() for _ in range(30)]
    for peer in peers:
        await peer.send(window_update(1 << 20), window_update(1 << 20, 1))
    # One after the other: one piece of memory is enough.
    for peer in peers:
        await peer.send(data(bytes(200_000)))
        await peer.message()
    assert [memory.nbytes for memory in stage.port._spare] == [200_000]
    # All at once, as none of them is whole: what is kept of it has a bound.
    for peer in peers:
        await peer.send(frame(DATA, 0, 1, prefixed(bytes(200_000))[:9]))
    await stage.until(lambda: all(one._http2._message.nbytes for one in stage.port._connections))
    for peer in peers:
        await peer.send(frame(DATA, 0, 1, prefixed(bytes(200_000))[9:]))
    for peer in peers:
        await peer.message()
    await stage.until(lambda: not any(one._http2._message.nbytes for one in stage.port._connections))
    assert 1 <= len(stage.port._spare) <= 16


# -- answers -----------------------------------------------------------------------------------------------------------


async def test_nothing_comes_to_a_place_once_the_reader_has_gone(stage: Stage) -> None:
    """It is somebody else's staging buffer by then."""
    place = memoryview(bytearray(MIB))
    asked, stop, stopped = asyncio.Event(), asyncio.Event(), asyncio.Event()
    rest: list[bytes] = []

    def where(begin: memoryview, size: int) -> tuple[int, memoryview]:
        asked.set()
        return 0, place[:size]

    async def handler(context: CommitConnection) -> None:
        reading = asyncio.ensure_future(context.read(where))
        await stop.wait()
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
        place[:] = bytes(MIB)
        stopped.set()
        message = await context.read()
        assert isinstance(message, bytes | memoryview)
        rest.append(bytes(message))

    stage.handler = handler
    peer = await stage.peer()
    await peer.begin()
    whole = b"\x01" * (MIB // 2)
    begun = data(whole)
    await peer.send(opening(), begun[:300_000])
    async with asyncio.timeout(30):
        await asked.wait()
        while not place[200_000]:
            await asyncio.sleep(0.01)
        stop.set()
        await stopped.wait()
    await peer.send(begun[300_000:])
    assert await peer.status() == (0, "")
    assert rest == [whole]
    assert bytes(place) == bytes(MIB)


async def test_answers_keep_to_the_callers_windows_and_largest_frame(stage: Stage) -> None:
    big = bytes(range(251)) * 2_000
    stage.handler = answering(big[:1000], memoryview(big)[1000:])
    peer = await stage.calling(initial_window=0)
    assert await peer.answers_pings()
    assert peer.payload == b""  # it may not say a word
    await peer.send(http2_settings(max_frame=20_000), window_update(7, 1))
    got = (await peer.next(DATA)).payload
    assert len(got) == 7
    allowed, ours, lengths = FIRST_WINDOW - 7, 0, []
    while len(got) < 5 + len(big):
        if not ours:
            await peer.send(window_update(30_000, 1))
            ours = 30_000
        if allowed < 30_000:
            await peer.send(window_update(50_000))
            allowed += 50_000
        payload = (await peer.next(DATA)).payload
        got += payload
        ours -= len(payload)
        allowed -= len(payload)
        lengths.append(len(payload))
        assert ours >= 0
        assert allowed >= 0
    assert got[5:] == big
    assert max(lengths) == 20_000
    assert await peer.status() == (0, "")


def answering(*message: bytes | memoryview) -> Handler:
    async def answer(context: CommitConnection) -> None:
        await context.send_initial_metadata(())
        await context.write(*message)

    return answer


class Ended:
    """A handler that writes until the test ends its call from the server's side, as Call.end does."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.written = 0

    async def __call__(self, context: CommitConnection) -> None:
        self.task = asyncio.current_task()
        await context.send_initial_metadata(())
        big = bytes(range(256)) * 4096
        try:
            while True:
                await context.write(big)
                self.written += 1
        except asyncio.CancelledError:
            assert self.task is not None
            self.task.uncancel()
        await context.abort(grpc.StatusCode.ABORTED, "superseded")


WIDE_WINDOW = 64 * MIB


async def within_an_answer(stage: Stage) -> tuple[Peer, CommitConnection, Ended]:
    """A caller with a wide window that does not read, and a frame of the answer to it that was sent in part."""
    stage.handler = ended = Ended()
    peer = await stage.peer(receive_buffer=4096)
    await peer.begin(initial_window=WIDE_WINDOW)
    await peer.send(window_update(WIDE_WINDOW - FIRST_WINDOW), opening())
    await stage.until(lambda: ended.task is not None)
    (connection,) = stage.port._connections
    await stage.until(lambda: connection._first_is_torn)
    return peer, connection, ended


async def test_an_answer_that_is_ended_within_a_frame_ends_in_legal_http2(stage: Stage) -> None:
    """And the next call has all of the caller's window, though much of it was meant for what was never sent."""
    peer, connection, ended = await within_an_answer(stage)
    await stage.until(lambda: connection._drained is not None)
    await asyncio.sleep(0.05)
    assert connection._first_is_torn
    assert ended.task is not None
    ended.task.cancel()
    await stage.until(lambda: stage.running == 0)
    assert await peer.status() == (10, "superseded")
    lost = WIDE_WINDOW - len(peer.payload) - connection._http2._window
    assert lost == 0
    assert len(peer.payload) > 2 * 128 << 10
    expected = prefixed(bytes(range(256)) * 4096) * (ended.written + 1)
    assert expected.startswith(peer.payload)
    peer.payload = b""
    stage.handler = answering(b"as ever")
    await peer.send(opening(3))
    assert await peer.message() == b"as ever"
    assert await peer.status(3) == (0, "")


async def test_a_caller_that_resets_an_answer_gets_the_rest_of_a_frame_and_no_more(stage: Stage) -> None:
    peer, _, _ = await within_an_answer(stage)
    await peer.send(frame(RESET, 0, 1, CANCEL.to_bytes(4, "big")))
    await stage.until(lambda: stage.running == 0)
    stage.handler = answering(b"as ever")
    await peer.send(opening(3))
    while (one := await peer.frame()).stream != 3:
        assert one.kind != HEADERS or not one.flags & END_STREAM
    assert one.kind == HEADERS
    assert await peer.message() == b"as ever"


async def test_a_caller_that_says_too_much_ahead_of_an_answer_is_told_to_read(stage: Stage) -> None:
    """The word that would open its window lies behind what the server does not read: neither would ever go on."""
    stage.handler = answering(bytes(100_000))
    peer = await stage.calling(initial_window=0)
    await peer.send(data(bytes(30_000)), window_update(1 << 20, 1), window_update(1 << 20))
    assert (await peer.status())[0] == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    stage.handler = answering(b"as ever")
    await peer.send(http2_settings(initial_window=1000), opening(3))
    assert await peer.message() == b"as ever"


async def test_a_caller_that_takes_no_answers_and_asks_on_is_left(stage: Stage) -> None:
    peer = await stage.peer(receive_buffer=4096)
    await peer.begin()
    (connection,) = stage.port._connections
    with suppress(ConnectionError):
        while True:
            await peer.send(frame(PING, 0, 0, bytes(8)) * 1000)
            assert sum(view.nbytes for one in connection._frames for view in one) < 8 * MIB
    await stage.until(lambda: not stage.port._connections)


async def test_a_caller_that_never_ends_a_message_leaves_others_their_turns(stage: Stage) -> None:
    """Frames without a byte, faster than they are read, are as good as a message without an end."""
    flooding = await stage.peer()
    await flooding.begin()
    assert await flooding.answers_pings()
    (connection,) = stage.port._connections
    receive, receipts, many = connection._receive, 0, 30_000

    def always_more() -> bool:
        nonlocal receipts
        receipts += 1
        return receive() or receipts < many

    connection._receive = always_more
    await flooding.send(opening(), frame(DATA, 0, 1) * 1000)
    other = await stage.calling()
    await other.send(data(b"hello"))
    assert await other.message() == b"hello"
    assert receipts < many


# -- the end of the port -----------------------------------------------------------------------------------------------


async def test_the_ports_end_waits_for_a_call_as_long_as_it_may() -> None:
    async with on_stage() as stage:
        stage.handler = waiting = Waiting()
        peer = await stage.calling()
        closing = asyncio.create_task(stage.port.close(60))
        await asyncio.sleep(0.05)
        assert not closing.done()
        waiting.go.set()
        await closing
        assert await peer.message() == b"gone"
        assert await peer.status() == (0, "")
        await peer.end()


async def test_the_ports_end_ends_a_call_that_goes_on() -> None:
    async with on_stage() as stage:
        stage.handler = waiting = Waiting()
        peer, idle = await stage.calling(), await stage.peer()
        await idle.begin()
        await stage.port.close(0.05)
        assert waiting.ended_by is asyncio.CancelledError
        await peer.end()
        await idle.end()
        with pytest.raises(ConnectionRefusedError):
            await stage.peer()
        await stage.port.close(0.05)  # harmless


# -- any cut, and any noise --------------------------------------------------------------------------------------------


def legal_stream() -> bytes:
    """Two calls, and much beside them."""
    block = opening(3)[9:]
    return b"".join(
        (
            PREFACE,
            http2_settings(initial_window=1 << 20),
            frame(SETTINGS, ACK, 0),
            window_update(1 << 20),
            opening(),
            frame(DATA, PADDED, 1, b"\x02" + prefixed(b"hello")[:3] + bytes(2)),
            frame(PING, 0, 0, bytes(8)),
            frame(DATA, 0, 1, prefixed(b"hello")[3:] + prefixed(bytes(range(256)) * 400)),
            window_update(5, 1),
            frame(DATA, END_STREAM, 1),
            frame(HEADERS, 0, 3, block[:5]),
            frame(CONTINUATION, END_HEADERS, 3, block[5:]),
            data(b"bye", 3),
            frame(GOAWAY, 0, 0, bytes(8)),
            frame(DATA, END_STREAM | PADDED, 3, b"\x01\x00"),
        )
    )


LEGAL = legal_stream()


async def waits_for_its_end(peer: Peer) -> None:
    """The second call's frames come when the first one is over: such is the number of calls that were allowed."""
    assert await peer.message() == b"hello"
    assert await peer.message() == bytes(range(256)) * 400
    assert await peer.status() == (0, "")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cuts=st.lists(st.integers(1, len(LEGAL) - 1), max_size=12), pause=st.booleans())
def test_what_is_said_is_understood_wherever_it_is_cut(cuts: list[int], pause: bool) -> None:
    second = LEGAL.index(frame(HEADERS, 0, 3, opening(3)[9:14]))
    places = [0, *sorted({*cuts, second}), len(LEGAL)]

    async def play() -> None:
        async with on_stage() as stage:
            peer = await stage.peer()
            for begin, end in pairwise(places):
                if begin == second:
                    await waits_for_its_end(peer)
                await peer.send(LEGAL[begin:end])
                if pause:
                    await asyncio.sleep(0.001)
            assert await peer.message() == b"bye"
            assert await peer.status(3) == (0, "")

    asyncio.run(play())


noise = st.one_of(
    st.binary(max_size=60),
    st.builds(
        frame,
        st.integers(0, 10),
        st.sampled_from([0, 1, 4, 5, 8, 0x20, 0x2D, 255]),
        st.sampled_from([0, 1, 1, 2, 3, 5]),
        st.one_of(st.binary(max_size=40), st.just(opening()[9:]), st.just(prefixed(b"hello"))),
    ),
    st.sampled_from([opening(), opening(3), opening(5), data(b"hello"), data(bytes(40_000)), data(b"", last=True)]),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(parts=st.lists(noise, max_size=8), cut=st.integers(0, 100))
def test_noise_harms_nobody_else(parts: list[bytes], cut: int) -> None:
    """Neither the loop (`on_stage` sees what gets lost in it) nor the next caller."""

    async def play() -> None:
        async with on_stage() as stage:
            peer = await stage.peer()
            await peer.begin()
            said = b"".join(parts)
            with suppress(ConnectionError):  # the server has hung up
                await peer.send(said[:cut])
                await asyncio.sleep(0)
                await peer.send(said[cut:])
            after = await stage.calling()
            await after.send(data(b"hello", last=True))
            assert await after.message() == b"hello"
            assert await after.status() == (0, "")
            peer.close()

    asyncio.run(play())
