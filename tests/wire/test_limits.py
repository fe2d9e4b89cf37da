"""Bounded memory: staging buffers in order, the waiting room before them, stalled holders, the size of a message."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np
import pytest
from gemps.v1 import commit_pb2
from google.rpc import status_pb2

from tests.waiting import eventually_async
from tests.wire.calls import answer_to
from tests.wire.conftest import Serve
from tests.wire.lane import HELLO, MESSAGE, WELCOME, LanePeer, frame, hello
from tests.wire.model import LARGE, SMALL, Model, Tensor
from tests.wire.processes import PeakMeter, server_process
from tests.wire.refusals import PATIENCE, read_refusal, refused
from tests.wire.serving import Serving
from tests.wire.transfer import MESSAGE_LIMIT, MIB, Commit
from tests.wire.worker import CommitStream, RawWorker, all_of

pytestmark = pytest.mark.usefixtures("each_transport")

T = TypeVar("T")
KIB = 1024
# One chunk of 2 MB.
MEDIUM = Model((Tensor("weight", (500_000,)),))
METHODS = ("Commit", "Initialize", "Join", "Pull", "WatchStatus", "Control")
# Between the chunks of a slow upload.
SLOW_CHUNK_SECONDS = 0.5


async def holder(worker: RawWorker) -> CommitStream:
    """A stream whose commit has a staging buffer, and sends nothing."""
    stream = worker.commit_stream()
    await stream.send_opening(worker.prepare(worker.delta(1)))
    return stream


async def lane_holder(worker: RawWorker, commit: Commit) -> LanePeer:
    """A connection of the lane whose commit has a staging buffer."""
    peer = await LanePeer.connect("127.0.0.1", worker.membership.lane_port)
    await peer.send(HELLO, hello(worker.session_id, worker.membership.incarnation).SerializeToString())
    await peer.expect(WELCOME)
    await peer.send(MESSAGE, commit.opening().SerializeToString())
    await peer.expect(MESSAGE)
    return peer


async def waiter(worker: RawWorker) -> CommitStream:
    """A stream whose commit has announced itself."""
    stream = worker.commit_stream()
    await stream.send(worker.prepare(worker.delta(1)).opening())
    return stream


async def finish(stream: CommitStream, chunks_sent: int = 0) -> None:
    """Send the rest of the stream's commit, and read the reply."""
    commit = stream.worker.prepare(stream.worker.delta(1))
    for message in commit.chunk_messages()[chunks_sent:]:
        await stream.send(message)
    await stream.send(commit.closing())
    await stream.outcome()


async def slowly(pieces: Iterable[T]) -> AsyncIterator[T]:
    """Yield the pieces, with a pause before each."""
    for piece in pieces:
        await asyncio.sleep(SLOW_CHUNK_SECONDS)
        yield piece


async def test_buffers_are_granted_in_the_order_of_asking(serve: Serve) -> None:
    serving = await serve(staging_buffers=1)
    workers = await serving.training(4, LARGE)
    streams = [await holder(workers[0])]
    for number, worker in enumerate(workers[1:], 1):
        streams.append(await waiter(worker))
        await serving.until_waiting(number)
    await finish(streams[0])
    for stream in streams[1:]:
        await stream.proceed()
        assert (await serving.status()).queue.staging_buffers_in_use == 1
        await finish(stream)
    assert (await serving.status()).commits == 4


async def test_commit_beyond_the_waiting_room_is_refused_with_a_retry_hint(serve: Serve) -> None:
    serving = await serve(staging_buffers=1, waiting_room=1)
    first, second, third = await serving.training(3, LARGE)
    held = await holder(first)
    waiting = await waiter(second)
    await serving.until_waiting(1)
    before = await serving.central(LARGE)
    refusal = await (await waiter(third)).refused("WAITING_ROOM")
    assert "1" in refusal.message
    assert await serving.central(LARGE) == before
    await finish(held)
    await waiting.proceed()
    await finish(waiting)
    await serving.next_commit_works(third)


async def test_small_commit_waits_for_a_buffer_too(serve: Serve) -> None:
    """The pool bounds all staged deltas: a whole commit is taken when there is room for it."""
    serving = await serve(staging_buffers=1, waiting_room=1)
    first, second, third = await serving.training(3)
    held = first.commit_stream()
    await held.send(first.prepare(first.delta(1)).opening())
    await held.proceed()
    waiting = second.commit_stream()
    await waiting.send_commit(second.prepare(second.delta(1)))
    await serving.until_waiting(1)
    refused = third.commit_stream()
    await refused.send_commit(third.prepare(third.delta(1)))
    await refused.refused("WAITING_ROOM")
    held.cancel()
    assert (await waiting.outcome()).verdict.version.clock == 2
    await serving.next_commit_works(third)


async def test_place_in_the_waiting_room_is_given_back_when_its_call_is_cancelled(serve: Serve) -> None:
    serving = await serve(staging_buffers=1, waiting_room=1)
    first, second, third = await serving.training(3, LARGE)
    held = await holder(first)
    (await waiter(second)).cancel()
    await serving.until_waiting(0)
    waiting = await waiter(third)
    await serving.until_waiting(1)
    held.cancel()
    await waiting.proceed()
    await finish(waiting)
    await serving.until_idle()


# -- stalled holders ---------------------------------------------------------------------------------------------------


async def test_holder_that_stalls_while_others_wait_loses_its_buffer(serve: Serve) -> None:
    """The holder got its buffer before the others came."""
    serving = await serve(staging_buffers=1, stall_timeout=0.2)
    first, second = await serving.training(2, LARGE)
    held = await holder(first)
    waiting = await waiter(second)
    await held.refused("STALLED")
    await waiting.proceed()
    await finish(waiting)
    await serving.next_commit_works(first)


async def test_holder_that_stalls_when_others_wait_already_loses_its_buffer(serve: Serve) -> None:
    """The holder gets its buffer while others wait already, sends for a while, and then stalls."""
    serving = await serve(staging_buffers=1, stall_timeout=0.2)
    first, second, third = await serving.training(3, LARGE)
    held = await holder(first)
    stalling = await waiter(second)
    await serving.until_waiting(1)
    last = await waiter(third)
    await serving.until_waiting(2)
    held.cancel()
    await stalling.proceed()
    await stalling.send(second.prepare(second.delta(1), chunk_bytes=64 * KIB).chunk_messages()[0])
    await stalling.refused("STALLED")
    await last.proceed()
    await finish(last)
    await serving.next_commit_works(second)
    assert (await serving.status()).commits == 2


async def test_what_comes_after_the_buffer_was_lost_reaches_nobody_elses_delta(serve: Serve) -> None:
    """On the lane a chunk is received into the buffer itself: half of it before, half of it after."""
    serving = await serve(staging_buffers=1, stall_timeout=0.2)
    first, second = await serving.training(2, LARGE)
    before = second.held
    assert before is not None
    poison = first.prepare(first.delta(7), chunk_bytes=100 * KIB)
    peer = await lane_holder(first, poison)
    chunk = frame(MESSAGE, poison.chunk_messages()[0].SerializeToString())
    await peer.send_bytes(chunk[: 50 * KIB])
    waiting = await waiter(second)
    await waiting.proceed()
    commit = second.prepare(second.delta(1), chunk_bytes=100 * KIB)
    await waiting.send(commit.chunk_messages()[0])
    await peer.send_bytes(chunk[50 * KIB :])
    assert (await peer.end()).code == grpc.StatusCode.ABORTED.value[0]
    for message in (*commit.chunk_messages()[1:], commit.closing()):
        await waiting.send(message)
    after = (await waiting.outcome()).reply.values.parameters
    np.testing.assert_allclose(after, before.values.parameters + second.delta(1).parameters, atol=1e-6)
    peer.close()


async def test_every_stalled_holder_of_a_full_pool_loses_its_buffer(serve: Serve) -> None:
    serving = await serve(staging_buffers=2, stall_timeout=0.2)
    workers = await serving.training(4, LARGE)
    held = [await holder(worker) for worker in workers[:2]]
    waiting = [await waiter(worker) for worker in workers[2:]]
    await all_of(*(stream.refused("STALLED") for stream in held))
    for stream in waiting:
        await stream.proceed()
    await all_of(*(finish(stream) for stream in waiting))
    await serving.until_idle()


async def test_holder_that_nobody_waits_for_keeps_its_buffer(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    serving = await serve(staging_buffers=1, stall_timeout=0.1)
    (worker,) = await serving.training(1, LARGE)
    held = await holder(worker)
    looks = 0
    evict_stalled = serving.server.staging.evict_stalled

    def look(*asked: Any) -> Any:
        nonlocal looks
        looks += 1
        return evict_stalled(*asked)

    monkeypatch.setattr(serving.server.staging, "evict_stalled", look)
    # The server looks four times within the time-out: five times what would end it if anybody waited.
    await eventually_async(lambda: looks >= 20)
    await finish(held)
    assert (await serving.status()).commits == 1


async def test_slow_holder_that_makes_progress_keeps_its_buffer(serve: Serve) -> None:
    """Progress counts, so the whole upload may take longer than the time-out."""
    serving = await serve(staging_buffers=1, stall_timeout=2.0)
    first, second = await serving.training(2, LARGE)
    held = await holder(first)
    waiting = await waiter(second)
    await serving.until_waiting(1)
    commit = first.prepare(first.delta(1), chunk_bytes=40 * KIB)
    assert len(commit.chunks) == 6
    async for message in slowly(commit.chunk_messages()):
        await held.send(message)
    await held.send(commit.closing())
    assert (await held.outcome()).verdict.version.clock == 2
    await waiting.proceed()
    await finish(waiting)


async def test_few_bytes_of_a_large_chunk_are_progress(serve: Serve) -> None:
    """The case is the lane, where the server otherwise wakes only at every 256 KiB of a long chunk."""
    serving = await serve(staging_buffers=1, stall_timeout=1.0)
    first, second = await serving.training(2, MEDIUM)
    commit = first.prepare(first.delta(1), chunk_bytes=2 * MIB)
    peer = await lane_holder(first, commit)
    waiting = await waiter(second)
    await serving.until_waiting(1)
    (message,) = commit.chunk_messages()
    sent = frame(MESSAGE, message.SerializeToString())
    await peer.send_bytes(sent[:MIB])
    async for start in slowly(range(MIB, MIB + 40, 8)):
        await peer.send_bytes(sent[start : start + 8])
    await peer.send_bytes(sent[MIB + 40 :])
    await peer.send(MESSAGE, commit.closing().SerializeToString())
    reply = commit_pb2.CommitResponse.FromString(await peer.expect(MESSAGE))
    assert reply.verdict.version.clock == 2
    peer.close()
    await waiting.proceed()
    await finish(waiting)


async def test_reader_that_stops_reading_holds_no_buffer(serve: Serve) -> None:
    """A slow reader holds its own memory and nobody else."""
    serving = await serve(staging_buffers=1, stall_timeout=0.2)
    first, second = await serving.training(2, LARGE)
    unread = await holder(first)
    commit = first.prepare(first.delta(1))
    for message in commit.chunk_messages():
        await unread.send(message)
    await unread.send(commit.closing())
    await serving.until(lambda status: status.commits == 1)
    for seed in range(3):
        await second.commit(second.delta(seed))
    assert (await unread.outcome()).verdict.version.clock == 2


# -- the size of a message ---------------------------------------------------------------------------------------------


async def expect_too_large(call: object, *, on_lane: bool = False) -> None:
    """The answer is the transport's own, before anything is parsed: no ErrorInfo; and without RetryInfo: do not retry.

    gRPC ends such calls itself; on the lane they are illegal frames, with a status of the same code.
    """
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await asyncio.wait_for(call, PATIENCE)
    assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    details = [value for key, value in raised.value.trailing_metadata() or () if key == "grpc-status-details-bin"]
    assert [list(status_pb2.Status.FromString(encoded).details) for encoded in details] == ([[]] if on_lane else [])


async def test_commit_message_above_the_limit_is_refused(serving: Serving) -> None:
    (worker,) = await serving.training(1)
    async with serving.unchanged(worker):
        stream = worker.commit_stream()
        data = bytes(MESSAGE_LIMIT)
        await stream.send(commit_pb2.CommitRequest(chunk=data))
        await expect_too_large(stream.receive(), on_lane=worker.uses_lane)


async def test_message_above_the_limit_in_the_middle_of_a_commit_gives_the_buffer_back(serve: Serve) -> None:
    serving = await serve(staging_buffers=1)
    (worker,) = await serving.training(1, LARGE)
    async with serving.unchanged(worker):
        stream = await holder(worker)
        await stream.send(commit_pb2.CommitRequest(chunk=bytes(MESSAGE_LIMIT)))
        await expect_too_large(stream.receive(), on_lane=worker.uses_lane)


@pytest.mark.parametrize("method", ["Join", "Pull", "Heartbeat", "GetStatus", "Control"])
async def test_request_above_the_limit_is_refused(serving: Serving, method: str) -> None:
    (worker,) = await serving.training(1)
    async with serving.unchanged(worker):
        call = getattr(worker.stub, method)(b"\x0a" * (MESSAGE_LIMIT + 1))
        await expect_too_large(call.read() if method == "Pull" else call)


async def refused_at_once(worker: RawWorker, method: str, message: bytes) -> None:
    await refused(answer_to(worker.stub, method, message), "MALFORMED", "OUT_OF_ORDER", "BAD_CHUNK", "INVALID_LAYOUT")


async def test_2_mib_of_empty_submessages_are_refused_and_cost_little(tmp_path: Path) -> None:
    """If they were parsed first, they would take a hundred times their size (docs/design.md, section 3)."""
    async with server_process(tmp_path) as server:
        (worker,) = await server.training(1)
        for method, field in product(METHODS, range(1, 6)):
            before = server.anonymous_bytes()
            with PeakMeter(server) as meter:
                await refused_at_once(worker, method, bytes([field << 3 | 2, 0]) * MIB)
            cost = meter.peak - before
            assert cost < 32 * MIB, f"{method}, field {field}: {cost / MIB:.0f} MiB"
        await server.next_commit_works(worker)


async def test_refusal_of_a_small_message_names_its_own_reason(serving: Serving) -> None:
    """Guards the helper above: it must not pass for a refusal that the service itself made."""
    (worker,) = await serving.training(1, SMALL)
    stream = worker.commit_stream()
    await stream.send(b"\xff\xff")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stream.receive()
    assert read_refusal(raised.value).reason == "MALFORMED"
