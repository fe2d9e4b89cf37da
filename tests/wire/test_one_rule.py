"""The one rule for failures (worker.proto): Join and Pull of a session end its Commit, and never a complete one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.wire.conftest import Serve
from tests.wire.model import LARGE, SMALL
from tests.wire.refusals import refused
from tests.wire.serving import Serving
from tests.wire.transfer import Commit
from tests.wire.worker import CommitStream, RawWorker

pytestmark = pytest.mark.usefixtures("each_transport")
KIB = 1024


async def begun_upload(worker: RawWorker) -> tuple[Commit, CommitStream]:
    """A commit whose first chunk has been sent, and its stream."""
    commit = worker.prepare(worker.delta(1), chunk_bytes=64 * KIB)
    stream = worker.commit_stream()
    await stream.send_opening(commit)
    await stream.send(commit.chunk_messages()[0])
    return commit, stream


@pytest.mark.parametrize("call", ["join", "pull"])
async def test_the_call_ends_an_upload_and_discards_it(serve: Serve, call: str) -> None:
    """This also holds if the upload has the only buffer. The rest of the upload changes nothing."""
    serving = await serve(staging_buffers=1)
    (worker,) = await serving.training(1, LARGE)
    commit, stream = await begun_upload(worker)
    await getattr(worker, call)()
    await stream.send(commit.closing())
    await stream.refused("NEWER_CALL")
    assert (await worker.heartbeat()).last_applied_sequence == 0
    await serving.next_commit_works(worker)
    assert (await serving.status()).commits == 1


@pytest.mark.parametrize("call", ["join", "pull"])
async def test_the_call_ends_a_stream_that_rests(serving: Serving, call: str) -> None:
    (worker,) = await serving.training(1)
    stream = worker.commit_stream()
    await stream.send_commit(worker.prepare(worker.delta(1)))
    await stream.outcome()
    await getattr(worker, call)()
    await stream.refused("NEWER_CALL")
    await serving.next_commit_works(worker)


@pytest.mark.parametrize("call", ["join", "pull"])
async def test_the_call_ends_a_commit_that_waits_for_a_buffer(serve: Serve, call: str) -> None:
    serving = await serve(staging_buffers=1)
    other, worker = await serving.training(2, LARGE)
    held = other.commit_stream()
    await held.send_opening(other.prepare(other.delta(1)))
    waiting = worker.commit_stream()
    await waiting.send(worker.prepare(worker.delta(1)).opening())
    await serving.until_waiting(1)
    await getattr(worker, call)()
    await waiting.refused("NEWER_CALL")
    held.cancel()
    await serving.next_commit_works(worker)


async def behind_the_first(serve: Serve) -> tuple[Serving, RawWorker, Callable[[], Awaitable[Any]]]:
    """A worker whose complete commit waits for its turn, and what ends the turn before, of another worker's commit."""
    serving = await serve(order="round-robin", min_workers=2, staging_buffers=8)
    first, second = await serving.training(2, LARGE)
    turn = first.prepare(first.delta(2))
    first_stream = first.commit_stream()
    await first_stream.send_opening(turn)

    async def end_turn() -> None:
        await first_stream.send_rest(turn)
        await first_stream.outcome()

    stream = second.commit_stream()
    await stream.send_commit(second.prepare(second.delta(1)))
    await serving.until_queued(1)
    return serving, second, end_turn


async def test_join_waits_for_a_complete_commit_and_counts_it(serve: Serve) -> None:
    serving, worker, end_turn = await behind_the_first(serve)
    joining = asyncio.create_task(worker.join())
    await asyncio.sleep(0.2)
    assert not joining.done()
    await end_turn()
    assert (await joining).last_applied_sequence == 1
    assert (await serving.status()).commits == 2


async def test_pull_comes_behind_a_complete_commit(serve: Serve) -> None:
    serving, worker, end_turn = await behind_the_first(serve)
    pulling = asyncio.create_task(worker.pull())
    await end_turn()
    await serving.until(lambda status: status.commits == 2)
    await serving.workers[0].leave()  # or the pull would wait for its next turn
    assert (await pulling).clock == 3
    assert (await worker.heartbeat()).last_applied_sequence == 1


async def test_a_worker_with_one_rule_for_all_failures_is_exact(serving: Serving) -> None:
    """After each break the worker joins, pulls and uses the next sequence. A break costs at most one delta."""
    (worker,) = await serving.training(1, LARGE)
    kept = 0
    for number in range(12):
        commit = worker.prepare(worker.delta(number), chunk_bytes=64 * KIB)
        stream = worker.commit_stream()
        messages = commit.messages()
        torn_at = number % (len(messages) + 2)
        for message in messages[:torn_at]:
            if message is messages[1]:
                assert await stream.proceed() == commit.header.sequence
            await stream.send(message)
        if torn_at > len(messages):
            await stream.outcome()
        stream.cancel()
        before = worker.sequence if torn_at > len(messages) else commit.header.sequence - 1
        answer = await worker.join()
        assert answer.last_applied_sequence in (before, before + 1)
        kept += answer.last_applied_sequence == commit.header.sequence
        assert (await worker.pull()).clock == 1 + kept
    assert (await serving.status()).commits == kept
    assert kept >= 1  # whose verdict was read; a busy machine has read nothing of the others
    await serving.next_commit_works(worker)


async def test_a_commit_that_arrives_behind_join_and_pull_counts_and_the_next_is_told_to_join(serving: Serving) -> None:
    """It was sent over a connection that broke, and whose bytes came late: the server cannot tell it from a new one."""
    (worker,) = await serving.training(1, SMALL)
    late = worker.prepare(worker.delta(1))
    assert (await worker.join()).last_applied_sequence == 0
    await worker.pull()
    gone = serving.adopt(worker.twin(worker.session_id))
    await gone.commit_on_new_stream(late)
    refusal = await refused(worker.commit_on_new_stream(worker.prepare(worker.delta(2))), "SEQUENCE_GAP")
    assert refusal.metadata["last_applied"] == "1"
    assert (await worker.join()).last_applied_sequence == 1
    assert (await worker.pull()).clock == 2
    await serving.next_commit_works(worker)


async def test_another_sessions_stream_is_left_alone(serving: Serving) -> None:
    first, second = await serving.training(2, SMALL)
    stream = first.commit_stream()
    await stream.send_commit(first.prepare(first.delta(1)))
    await stream.outcome()
    await second.join()
    await second.pull()
    await stream.send_commit(first.prepare(first.delta(2)))
    await stream.outcome()
