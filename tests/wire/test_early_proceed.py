"""A proceed that comes with a reply's footer (commit.proto): who gets it, what it allows, and what happens to it."""

import asyncio
from typing import Any

import pytest
from gem_server.service import lane_connection
from gemps.v1 import commit_pb2

from tests.wire.conftest import Serve
from tests.wire.model import LARGE, SMALL, Model
from tests.wire.serving import Serving
from tests.wire.worker import FEATURES, CommitStream, RawWorker, all_of

pytestmark = pytest.mark.usefixtures("each_transport")
EARLY = [*FEATURES, "early-proceed"]


async def replied(stream: CommitStream) -> tuple[int, commit_pb2.CommitResponse]:
    """Read a reply to its end. Returns the sequence of the proceed in its last message, or 0, and its first message."""
    first = message = await stream.receive()
    assert first.HasField("verdict")
    while not message.HasField("footer"):
        assert not message.HasField("proceed")
        message = await stream.receive()
    worker = stream.worker
    worker.sequence = first.verdict.sequence
    worker.version.CopyFrom(first.parameters.version)
    return message.proceed.sequence, first


async def first_commit(worker: RawWorker) -> tuple[CommitStream, int]:
    stream = worker.commit_stream()
    await stream.send_commit(worker.prepare(worker.delta(1), chunk_bytes=64 * 1024))
    return stream, (await replied(stream))[0]


async def early_worker(serving: Serving, model: Model = LARGE) -> RawWorker:
    (worker,) = await serving.training(1, model, features=EARLY)
    assert "early-proceed" in worker.membership.features
    return worker


async def test_commits_follow_each_other_without_waiting(serving: Serving) -> None:
    worker = await early_worker(serving)
    stream, granted = await first_commit(worker)
    for sequence in range(2, 7):
        assert granted == sequence
        for message in worker.prepare(worker.delta(sequence), chunk_bytes=10_001).messages():
            await stream.send(message)
        granted, first = await replied(stream)
        assert first.verdict.sequence == sequence
    await stream.end()
    assert (await serving.status()).commits == 6


async def test_only_workers_that_announce_it_get_one(serving: Serving) -> None:
    (worker,) = await serving.training(1, LARGE)
    _, granted = await first_commit(worker)
    assert granted == 0


async def test_small_payloads_need_none(serving: Serving) -> None:
    worker = await early_worker(serving, SMALL)
    _, granted = await first_commit(worker)
    assert granted == 0


async def test_no_more_are_promised_than_there_are_buffers(serve: Serve) -> None:
    serving = await serve(staging_buffers=1)
    workers = await serving.training(3, LARGE, features=EARLY)
    promised = [(await first_commit(worker))[1] for worker in workers]
    assert promised == [2, 0, 0]


async def test_a_promise_ends_with_its_stream(serve: Serve) -> None:
    serving = await serve(staging_buffers=1)
    first, second = await serving.training(2, LARGE, features=EARLY)
    stream, granted = await first_commit(first)
    assert granted == 2
    await stream.end()
    assert (await first_commit(second))[1] == 2


async def test_in_a_run_that_takes_turns_there_is_none(serve: Serve) -> None:
    serving = await serve(order="round-robin")
    worker = await early_worker(serving)
    assert (await first_commit(worker))[1] == 0


async def test_a_commit_whose_promised_buffer_was_taken_waits_unread(serve: Serve) -> None:
    """It is applied when a buffer is free, and no other proceed comes."""
    serving = await serve(staging_buffers=1)
    first, second = await serving.training(2, LARGE, features=EARLY)
    stream, granted = await first_commit(first)
    assert granted == 2
    held = second.commit_stream()
    await held.send_opening(second.prepare(second.delta(1)))
    commit = first.prepare(first.delta(2), chunk_bytes=64 * 1024)

    async def send_all() -> None:
        for message in commit.messages():
            await stream.send(message)

    sending = asyncio.create_task(send_all())
    await serving.until_waiting(1)
    held.cancel()
    _, answer = await replied(stream)
    await sending
    assert answer.verdict.sequence == 2


async def test_a_worker_that_breaks_off_while_it_waits_unread_is_noticed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_connection, "LOOK_SECONDS", 0.05)
    serving = await serve(staging_buffers=1)
    first, second = await serving.training(2, LARGE, features=EARLY)
    stream, _ = await first_commit(first)
    held = second.commit_stream()
    await held.send_opening(second.prepare(second.delta(1)))
    commit = first.prepare(first.delta(2), chunk_bytes=20_000)
    for message in commit.messages()[:3]:
        await stream.send(message)
    await serving.until_waiting(1)
    stream.cancel()
    await serving.until(lambda status: status.queue.waiting == 0)
    held.cancel()
    await serving.next_commit_works(second)


async def test_chunks_that_nobody_asked_for_are_read_once_there_is_a_buffer(serving: Serving) -> None:
    """This holds on the lane as over gRPC, where the server cannot distinguish them."""
    (worker,) = await serving.training(1, LARGE)
    commit = worker.prepare(worker.delta(1), chunk_bytes=64 * 1024)
    stream = worker.commit_stream()
    for message in commit.messages():
        await stream.send(message)
    assert await stream.proceed() == 1
    assert (await stream.outcome()).verdict.sequence == 1


async def test_chunks_behind_a_header_that_gets_a_verdict_are_refused(serving: Serving) -> None:
    (worker,) = await serving.training(1, LARGE)
    commit = worker.prepare(worker.delta(1), chunk_bytes=64 * 1024)
    await worker.commit_on_new_stream(commit)
    stream = worker.commit_stream()
    await stream.send(commit.repeated().opening())
    await stream.send(commit.chunk_messages()[0])
    assert (await stream.outcome()).verdict.duplicate
    await stream.refused("OUT_OF_ORDER")


async def test_many_workers_with_promises_train_as_others_do(serve: Serve) -> None:
    serving = await serve(staging_buffers=2)
    workers: list[Any] = await serving.training(5, LARGE, features=EARLY)

    async def train(worker: RawWorker) -> None:
        stream, granted = await first_commit(worker)
        for number in range(2, 9):
            commit = worker.prepare(worker.delta(number), chunk_bytes=64 * 1024)
            if granted:
                for message in commit.messages():
                    await stream.send(message)
            else:
                await stream.send_commit(commit)
            granted, first = await replied(stream)
            assert first.verdict.sequence == number
        await stream.end()

    await all_of(*map(train, workers))
    assert (await serving.status()).commits == 40
