"""The lane of a real server: sessions, turns, and peers that break the protocol, are slow, or flood it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import pytest
import pytest_asyncio
from gem_server.service import lane_connection
from gemps import lane
from gemps.v1 import commit_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2

from tests.waiting import eventually_async
from tests.wire.lane import CANCEL, END, HELLO, MESSAGE, PING, PONG, WELCOME, LanePeer, frame, hello
from tests.wire.model import LARGE, SMALL, Model, Tensor
from tests.wire.refusals import PATIENCE
from tests.wire.serving import Serving
from tests.wire.transfer import MIB
from tests.wire.worker import RawWorker

# A reply of 40 MB: more than all buffers of a connection take.
WIDE = Model((Tensor("weight", (10_000_000,)),))
# One chunk of 1.2 MB, which the server receives in several pieces.
MEDIUM = Model((Tensor("weight", (300_000,)),))
MEDIUM_CUTS = [256 << 10, 512 << 10, 700_000, 1 << 20, 1_200_000]
# Of a slow reader, for each message.
READING_SECONDS = 0.1


@pytest_asyncio.fixture
async def serving() -> AsyncIterator[Serving]:
    serving = await Serving.start()
    try:
        yield serving
    finally:
        await serving.close()
        await serving.stop()


@pytest_asyncio.fixture
async def crowded() -> AsyncIterator[Serving]:
    """With one staging buffer; deltas are added as they are."""
    serving = await Serving.start(staging_buffers=1, rule="downpour")
    try:
        yield serving
    finally:
        await serving.close()
        await serving.stop()


async def connect(worker: RawWorker, *, reads_ahead: bool = True) -> LanePeer:
    return await LanePeer.connect("127.0.0.1", worker.membership.lane_port, reads_ahead=reads_ahead)


async def welcomed(worker: RawWorker, *, reads_ahead: bool = True) -> LanePeer:
    peer = await connect(worker, reads_ahead=reads_ahead)
    await peer.send(HELLO, hello(worker.session_id, worker.membership.incarnation).SerializeToString())
    await peer.expect(WELCOME)
    return peer


async def uploading(worker: RawWorker, chunk_bytes: int = MIB) -> tuple[LanePeer, list[bytes]]:
    """A connection in state COMMITTING, and the messages that finish its commit."""
    peer = await welcomed(worker)
    commit = worker.prepare(worker.delta(1), chunk_bytes=chunk_bytes)
    await peer.send(MESSAGE, commit.opening().SerializeToString())
    assert commit_pb2.CommitResponse.FromString(await peer.expect(MESSAGE)).HasField("proceed")
    return peer, [one.SerializeToString() for one in (*commit.chunk_messages(), commit.closing())]


async def verdict(peer: LanePeer) -> commit_pb2.Verdict:
    return commit_pb2.CommitResponse.FromString(await peer.expect(MESSAGE)).verdict


def reason_of(status: status_pb2.Status) -> str:
    info = error_details_pb2.ErrorInfo()
    return info.reason if status.details and status.details[0].Unpack(info) else ""


# -- sessions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("session_id", "reason"), [(b"u" * 16, "UNKNOWN_SESSION"), (b"", "MALFORMED"), (b"u" * 17, "MALFORMED")]
)
async def test_a_session_that_has_not_joined_is_refused(serving: Serving, session_id: bytes, reason: str) -> None:
    (worker,) = await serving.training(1)
    peer = await connect(worker)
    await peer.send(HELLO, hello(session_id, worker.membership.incarnation).SerializeToString())
    assert reason_of(await peer.end()) == reason
    await serving.next_commit_works(worker)


async def test_a_newer_connection_ends_the_older_one(serving: Serving) -> None:
    (worker,) = await serving.training(1)
    older = await welcomed(worker)
    newer = await welcomed(worker)
    status = await older.end()
    assert (status.code, reason_of(status)) == (code_pb2.ABORTED, "NEWER_CALL")
    await newer.send(MESSAGE, worker.prepare(worker.delta(1)).whole().SerializeToString())
    assert (await verdict(newer)).sequence == 1


async def test_a_newer_connection_ends_one_that_uploads(serving: Serving) -> None:
    (worker,) = await serving.training(1, LARGE)
    older, messages = await uploading(worker, 40_000)
    await older.send(MESSAGE, messages[0])
    newer, messages = await uploading(worker)
    assert reason_of(await older.end()) == "NEWER_CALL"
    for message in messages:
        await newer.send(MESSAGE, message)
    assert (await verdict(newer)).version.clock == 2


# -- what is legal -----------------------------------------------------------------------------------------------------


async def test_a_ping_is_answered_with_its_bytes(serving: Serving) -> None:
    (worker,) = await serving.training(1)
    peer = await welcomed(worker)
    await peer.send(PING, b"anything")
    assert await peer.expect(PONG) == b"anything"


async def test_a_ping_that_comes_too_early_closes(serving: Serving) -> None:
    (worker,) = await serving.training(1)
    peer = await welcomed(worker)
    await peer.send(PING, b"12345678")
    await peer.expect(PONG)
    await peer.send(PING, b"12345678")
    status = await peer.end()
    assert status.code == code_pb2.INVALID_ARGUMENT
    assert "pings within 5 s" in status.message


async def test_a_ping_and_a_commit_may_come_together(serving: Serving) -> None:
    (worker,) = await serving.training(1)
    peer = await welcomed(worker)
    commit = worker.prepare(worker.delta(1)).whole().SerializeToString()
    await peer.send_bytes(frame(PING, b"12345678") + frame(MESSAGE, commit))
    await peer.expect(PONG)
    assert (await verdict(peer)).sequence == 1


ILLEGAL = [
    pytest.param(frame(kind, bytes(size)), id=f"kind {kind} of {size} bytes")
    for kind, size in [(0, 0), (1, 20), (2, 0), (3, 0), (4, 2), (5, 1), (6, 7), (6, 9), (7, 8), (8, 0), (255, 5)]
]
TOO_LARGE = pytest.param(b"\xff\xff\xff\xff\x03", id="4 GiB")


def code_of(sent: bytes) -> int:
    """Of END. What is larger than any message gets the code with which gRPC refuses it."""
    return code_pb2.RESOURCE_EXHAUSTED if sent.startswith(b"\xff\xff\xff\xff") else code_pb2.INVALID_ARGUMENT


@pytest.mark.parametrize("sent", [*ILLEGAL, TOO_LARGE])
async def test_an_illegal_frame_ends_an_idle_connection(serving: Serving, sent: bytes) -> None:
    (worker,) = await serving.training(1)
    async with serving.unchanged(worker):
        peer = await welcomed(worker)
        await peer.send_bytes(sent)
        assert (await peer.end()).code == code_of(sent)


@pytest.mark.parametrize("sent", [*ILLEGAL, TOO_LARGE, pytest.param(frame(PING, bytes(8)), id="ping")])
async def test_an_illegal_frame_ends_an_upload_and_gives_its_buffer_back(serving: Serving, sent: bytes) -> None:
    (worker,) = await serving.training(1, LARGE)
    async with serving.unchanged(worker):
        peer, messages = await uploading(worker, 40_000)
        await peer.send(MESSAGE, messages[0])
        await peer.send_bytes(sent)
        assert (await peer.end()).code == code_of(sent)


@pytest.mark.parametrize("sent", [*ILLEGAL, TOO_LARGE])
async def test_a_frame_out_of_turn_ends_a_connection_whose_worker_waits(crowded: Serving, sent: bytes) -> None:
    """The worker waits for a staging buffer that another one has."""
    worker, other = await crowded.training(2, LARGE)
    holder, _ = await uploading(other)
    async with crowded.unchanged(worker):
        peer = await welcomed(worker)
        await peer.send(MESSAGE, worker.prepare(worker.delta(1)).opening().SerializeToString())
        await crowded.until_waiting(1)
        await peer.send_bytes(sent)
        assert (await peer.end()).code == code_of(sent)
        await crowded.until_waiting(0)
        holder.abort()


async def waiting_commit_unchanged_by(crowded: Serving, early: bytes) -> tuple[LanePeer, asyncio.Task[None]]:
    """Send `early` while a commit waits for a staging buffer, and check that the commit is applied as it was sent.

    The commit's data is in the connection's buffer meanwhile. Returns the connection, and the task that sends.
    """
    worker, other = await crowded.training(2, SMALL)
    holder, _ = await uploading(other)
    before, delta = await crowded.values(SMALL), worker.delta(1)
    peer = await welcomed(worker)
    await peer.send(MESSAGE, worker.prepare(delta).whole().SerializeToString())
    await crowded.until_waiting(1)
    sending = asyncio.create_task(peer.send_bytes(early))
    await crowded.status()  # the server has read what it can
    holder.abort()
    assert (await verdict(peer)).sequence == 1
    after = await crowded.values(SMALL)
    assert after.parameters.tobytes() == (before.parameters + delta.parameters).tobytes()
    assert after.rest == delta.rest
    return peer, sending


async def test_the_begin_of_a_frame_does_not_change_the_commit_that_waits(crowded: Serving) -> None:
    _, sending = await waiting_commit_unchanged_by(crowded, frame(CANCEL)[:-1])
    await sending


async def test_a_message_that_comes_early_does_not_change_the_commit_that_waits(crowded: Serving) -> None:
    """The message is larger than the free space in the connection's buffer, is read afterwards, and has no header."""
    early = frame(MESSAGE, bytes([26, 3, 1, 2, 3])) + b"\xff" * 60_000
    peer, sending = await waiting_commit_unchanged_by(crowded, early)
    assert [kind async for kind, _ in frames_of(peer)][-1:] == [END]
    with suppress(OSError):
        await sending


async def test_messages_behind_the_footer_are_out_of_turn(serving: Serving) -> None:
    """Whether the commit was in the queue by then is open, as with any break; it is applied once, or not at all."""
    (worker,) = await serving.training(1, LARGE)
    peer, messages = await uploading(worker)
    await peer.send_bytes(b"".join(frame(MESSAGE, one) for one in (*messages, messages[0])))
    received = [kind async for kind, _ in frames_of(peer)]
    assert set(received) <= {MESSAGE, END}
    await serving.until_idle()
    applied = (await worker.heartbeat()).last_applied_sequence
    assert applied == (await serving.status()).commits <= 1
    await worker.pull()
    worker.sequence = applied
    await serving.next_commit_works(worker)


@pytest.mark.parametrize("pause_at", [None, -3, -12, -20, 100_000])
async def test_a_large_message_may_have_its_footer_behind_its_chunk(serving: Serving, pause_at: int | None) -> None:
    """The message may arrive in any pieces."""
    (worker,) = await serving.training(1, LARGE)
    peer, _ = await uploading(worker)
    commit = worker.prepare(worker.delta(1))
    (chunk,) = commit.chunks
    parts = commit_pb2.CommitRequest(chunk=chunk), commit_pb2.CommitRequest(footer=commit.footer)
    sent = frame(MESSAGE, b"".join(part.SerializeToString() for part in parts) + b"\x9a\x06\x03abc")
    await peer.send_bytes(sent[:pause_at])
    if pause_at is not None:
        await asyncio.sleep(0.1)
        await peer.send_bytes(sent[pause_at:])
    assert (await verdict(peer)).sequence == 1


async def test_a_large_message_with_much_behind_its_chunk_or_a_second_one_is_refused(serving: Serving) -> None:
    (worker,) = await serving.training(1, LARGE)
    for behind in (b"\x9a\x06\x80\x10" + bytes(2048), b"\x1a\x03abc"):
        async with serving.unchanged(worker):
            peer, messages = await uploading(worker)
            await peer.send(MESSAGE, messages[0] + behind)
            assert reason_of(await peer.end()) == "MALFORMED"


async def test_a_large_message_that_is_no_chunk_is_refused(serving: Serving) -> None:
    (worker,) = await serving.training(1, LARGE)
    for body in (bytes(200_000), b"\x0a\xc0\x9a\x0c" + bytes(200_000), b"\x9a\x06\xc0\x9a\x0c" + bytes(200_000)):
        async with serving.unchanged(worker):
            peer, _ = await uploading(worker)
            await peer.send(MESSAGE, body)
            assert reason_of(await peer.end()) == "MALFORMED"


async def test_cancel_ends_a_connection_without_a_word(serving: Serving) -> None:
    (worker,) = await serving.training(1, LARGE)
    async with serving.unchanged(worker):
        idle = await welcomed(worker)
        await idle.send(CANCEL)
        assert await idle.closed()
        peer, messages = await uploading(worker, 40_000)
        await peer.send(MESSAGE, messages[0])
        await peer.send(CANCEL)
        assert await peer.closed()


async def test_breaks_are_told_of_once(serving: Serving, caplog: pytest.LogCaptureFixture) -> None:
    (worker,) = await serving.training(1)
    for _ in range(10):
        peer = await welcomed(worker)
        await peer.send(PONG, bytes(8))
        await peer.end()
    assert caplog.text.count("a connection of the lane from 127.0.0.1:") == 1


@pytest.mark.parametrize(
    ("model", "chunk_bytes", "cuts"),
    [
        (LARGE, 100_000, range(1, 120, 9)),
        (MEDIUM, 2 * MIB, [size - more for size in MEDIUM_CUTS for more in (0, 1, 17)]),
    ],
)
async def test_a_commit_cut_at_any_byte_of_its_frames_is_the_same_commit(
    serving: Serving, model: Model, chunk_bytes: int, cuts: Sequence[int]
) -> None:
    """The frames arrive in two pieces, the second of which comes in a later turn of the event loop."""
    (worker,) = await serving.training(1, model)
    peer = await welcomed(worker)
    for number, cut in enumerate(cuts, 1):
        commit = worker.prepare(worker.delta(number), chunk_bytes=chunk_bytes, sequence=number)
        await peer.send(MESSAGE, commit.opening().SerializeToString())
        await peer.expect(MESSAGE)
        for message in (*commit.chunk_messages(), commit.closing()):
            sent = frame(MESSAGE, message.SerializeToString())
            await peer.send_bytes(sent[:cut])
            await serving.status()
            await peer.send_bytes(sent[cut:])
        reply = commit_pb2.CommitResponse.FromString(await peer.expect(MESSAGE))
        assert reply.verdict.version.clock == number + 1
        worker.version = reply.verdict.version
        while not reply.HasField("footer"):
            reply = commit_pb2.CommitResponse.FromString(await peer.expect(MESSAGE))


# -- slow peers, and floods --------------------------------------------------------------------------------------------


async def test_the_end_reaches_a_worker_that_is_still_sending(serving: Serving) -> None:
    """Closing at once would reset the connection, and throw away the END that the worker has not read yet."""
    worker, *_ = await serving.training(1, WIDE)
    peer, messages = await uploading(worker)
    await peer.send(MESSAGE, messages[-1])  # the footer

    async def go_on() -> None:
        for message in messages[:6]:
            await peer.send(MESSAGE, message)

    await asyncio.gather(go_on(), return_exceptions=True)
    assert reason_of(await peer.end()) == "SIZE_MISMATCH"
    await serving.until_idle()


async def test_a_worker_that_sends_for_ever_after_the_end_is_closed(serving: Serving) -> None:
    (worker,) = await serving.training(1, LARGE)
    peer, _ = await uploading(worker)
    with suppress(OSError):
        async with asyncio.timeout(PATIENCE):
            while True:
                await peer.send(MESSAGE, bytes(MIB))
    await serving.until_idle()
    assert not serving.server.lane.connections


async def test_a_worker_that_does_not_hang_up_after_the_end_is_closed(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_connection, "LINGER_SECONDS", 0.1)
    (worker,) = await serving.training(1, LARGE)
    peer, messages = await uploading(worker, 40_000)
    await peer.send(MESSAGE, messages[-1])
    assert reason_of(await peer.end()) == "SIZE_MISMATCH"
    await eventually_async(lambda: not serving.server.lane.connections)


async def test_a_reader_that_takes_nothing_is_closed(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_connection, "WRITE_SECONDS", 0.2)
    (worker,) = await serving.training(1, WIDE)
    peer = await welcomed(worker, reads_ahead=False)
    commit = worker.prepare(worker.delta(1))
    await peer.send(MESSAGE, commit.opening().SerializeToString())
    await peer.expect(MESSAGE)
    for message in (*commit.chunk_messages(), commit.closing()):
        await peer.send(MESSAGE, message.SerializeToString())
    await serving.until(lambda status: status.commits == 1)
    await eventually_async(lambda: not serving.server.lane.connections)
    rest = [received[0] async for received in frames_of(peer)]
    assert set(rest) <= {MESSAGE}  # and then a torn one
    assert len(rest) < 40


async def frames_of(peer: LanePeer) -> AsyncIterator[tuple[int, bytes]]:
    while (received := await peer.receive()) is not None:
        yield received


async def test_a_slow_reader_that_takes_something_is_not_closed(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress counts: the reply takes several times as long as a reader may take nothing."""
    monkeypatch.setattr(lane_connection, "WRITE_SECONDS", 1.0)
    (worker,) = await serving.training(1, WIDE)
    peer = await welcomed(worker, reads_ahead=False)
    commit = worker.prepare(worker.delta(1))
    await peer.send(MESSAGE, commit.opening().SerializeToString())
    await peer.expect(MESSAGE)
    for message in (*commit.chunk_messages(), commit.closing()):
        await peer.send(MESSAGE, message.SerializeToString())
    received = 0
    while True:
        reply = commit_pb2.CommitResponse.FromString(await peer.expect(MESSAGE))
        received += len(reply.chunk)
        if reply.HasField("footer"):
            break
        if received < 20 * MIB:
            await asyncio.sleep(READING_SECONDS)
    assert received == 40_000_000


async def test_a_flood_of_tiny_chunks_lets_others_be_served(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk is legal, and costs the server far more than its worker, so the work in one turn is limited."""
    flooding, other = await serving.training(2, LARGE)
    peer, _ = await uploading(flooding)
    turns: list[int] = []
    taken = 0
    next_frame = lane.Lane.next_frame

    def count(self: lane.Lane, received: int = 0) -> lane.Frame | None:
        nonlocal taken
        found = next_frame(self, received)
        taken += found is not None
        return found

    def note() -> None:
        """At each turn of the event loop."""
        nonlocal taken
        turns.append(taken)
        taken = 0
        loop.call_soon(note)

    loop = asyncio.get_running_loop()
    loop.call_soon(note)
    monkeypatch.setattr(lane.Lane, "next_frame", count)
    payload = flooding.prepare(flooding.delta(1)).payload
    sent = b"".join(
        frame(
            MESSAGE,
            commit_pb2.CommitRequest(chunk=payload[offset : offset + 4]).SerializeToString(),
        )
        for offset in range(0, 200_000, 4)
    )
    sending = asyncio.create_task(peer.send_bytes(sent))
    for seed in range(5):
        await other.commit(other.delta(seed))
    await sending
    await serving.until(lambda status: status.commits == 5)
    await eventually_async(lambda: sum(turns) >= 50_000)
    # Twice if new bytes arrive in the turn that has taken the last ones.
    assert max(turns) <= 2 * lane_connection.TURN_FRAMES
    peer.abort()


async def test_a_flood_of_bytes_lets_others_be_served(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn is also limited by bytes. Chunks of 1 MiB reach this limit after four frames."""
    monkeypatch.setattr(lane_connection, "TURN_BYTES", 1 << 16)
    (worker,) = await serving.training(1, WIDE)
    peer, messages = await uploading(worker)
    for message in messages:
        await peer.send(MESSAGE, message)
    assert (await verdict(peer)).version.clock == 2


async def test_2000_empty_submessages_in_a_first_message_are_refused(serving: Serving) -> None:
    (worker,) = await serving.training(1, SMALL)
    async with serving.unchanged(worker):
        for field in range(1, 6):
            peer = await welcomed(worker)
            await peer.send(MESSAGE, bytes([field << 3 | 2, 0]) * 2000)
            assert reason_of(await peer.end()) in ("MALFORMED", "OUT_OF_ORDER", "BAD_CHUNK")
