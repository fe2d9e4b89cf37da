"""A commit without a footer that matches does not exist, however its stream ended (docs/design.md, section 3)."""

from pathlib import Path

import grpc
import pytest

from tests.wire.conftest import Serve
from tests.wire.model import LARGE, SMALL
from tests.wire.processes import doomed_process
from tests.wire.refusals import Refusal, answered_or_refused, refused
from tests.wire.serving import Serving
from tests.wire.transfer import Commit
from tests.wire.worker import CommitStream, RawWorker

pytestmark = pytest.mark.usefixtures("each_transport_and_tls")

# Header, 6 chunks, footer: everything up to the footer is torn.
MESSAGES = 8
TORN_AFTER = pytest.mark.parametrize("sent", range(1, MESSAGES))


def large_commit(worker: RawWorker) -> Commit:
    commit = worker.prepare(worker.delta(1), chunk_bytes=40 * 1024)
    assert len(commit.chunks) == MESSAGES - 2
    return commit


async def send_part(stream: CommitStream, commit: Commit, sent: int) -> None:
    """The commit's header, and its first sent - 1 chunks."""
    await stream.send_opening(commit)
    for message in commit.chunk_messages()[: sent - 1]:
        await stream.send(message)


@TORN_AFTER
async def test_commit_torn_by_cancel_does_not_exist(serve: Serve, sent: int) -> None:
    serving = await serve(staging_buffers=1)
    (worker,) = await serving.training(1, LARGE)
    async with serving.unchanged(worker):
        stream = worker.commit_stream()
        await send_part(stream, large_commit(worker), sent)
        stream.cancel()


@TORN_AFTER
async def test_commit_torn_by_a_half_close_does_not_exist(serve: Serve, sent: int) -> None:
    """It looks like a normal end, and is none."""
    serving = await serve(staging_buffers=1)
    (worker,) = await serving.training(1, LARGE)
    async with serving.unchanged(worker):
        stream = worker.commit_stream()
        await send_part(stream, large_commit(worker), sent)
        await stream.half_close()
        # Whatever the server says to a stream that ends in the middle, it says no verdict.
        answer = await answered_or_refused(stream.receive(), "OUT_OF_ORDER")
        assert answer is None or isinstance(answer, Refusal)


@TORN_AFTER
async def test_commit_torn_by_its_deadline_does_not_exist(serve: Serve, sent: int) -> None:
    serving = await serve(staging_buffers=1)
    (worker,) = await serving.training(1, LARGE)
    async with serving.unchanged(worker):
        stream = worker.commit_stream(timeout=0.3)
        await send_part(stream, large_commit(worker), sent)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stream.receive()
        assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


@TORN_AFTER
async def test_commit_torn_by_a_lost_connection_does_not_exist(serve: Serve, sent: int) -> None:
    serving = await serve(staging_buffers=1)
    (worker,) = await serving.training(1, LARGE)
    back = serving.adopt(worker.twin(worker.session_id))
    async with serving.unchanged(back):
        await send_part(worker.commit_stream(), large_commit(worker), sent)
        await worker.close()


@TORN_AFTER
async def test_commit_torn_by_the_death_of_its_client_does_not_exist(serve: Serve, tmp_path: Path, sent: int) -> None:
    """Kill -9, at every chunk."""
    serving = await serve(staging_buffers=1)
    (worker,) = await serving.training(1, LARGE)
    client = doomed_process(worker, tmp_path, "Commit", [large_commit(worker).messages()[:sent]])
    async with serving.unchanged(worker), client as process:
        await serving.until(lambda status: status.queue.staging_buffers_in_use == 1)
        process.kill()


async def test_commit_whose_client_died_after_the_footer_counts_once(serve: Serve, tmp_path: Path) -> None:
    """The outcome is unknown to the worker: a Heartbeat tells it, and sending again is harmless in both cases."""
    serving = await serve(staging_buffers=1)
    (worker,) = await serving.training(1, LARGE)
    commit = large_commit(worker).repeated()
    async with doomed_process(worker, tmp_path, "Commit", [commit.messages()]) as process:
        process.kill()
    await serving.until_idle()
    applied = (await worker.heartbeat()).last_applied_sequence
    stream = worker.commit_stream()
    if applied == 1:
        await stream.send(commit.opening())
    else:
        await stream.send_commit(commit)
    outcome = await stream.outcome()
    assert outcome.verdict.duplicate == (applied == 1)
    assert outcome.verdict.version.clock == 2
    assert (await serving.status()).commits == 1
    worker.sequence = 1
    await serving.next_commit_works(worker)


async def test_whole_commit_without_footer_does_not_exist(serving: Serving) -> None:
    (worker,) = await serving.training(1)
    async with serving.unchanged(worker):
        message = worker.prepare(worker.delta(1)).whole()
        message.ClearField("footer")
        stream = worker.commit_stream()
        await stream.send(message)
        await stream.half_close()
        answer = await answered_or_refused(stream.receive(), "OUT_OF_ORDER")
        assert answer is None or isinstance(answer, Refusal)


async def test_many_torn_commits_lose_no_buffer(serve: Serve) -> None:
    """More than the pool has, from several sessions at once."""
    serving = await serve(staging_buffers=2)
    workers = await serving.training(3, LARGE)
    before = await serving.central(LARGE)
    for _ in range(4):
        streams = [worker.commit_stream() for worker in workers]
        for worker, stream in zip(workers, streams, strict=True):
            await stream.send(large_commit(worker).opening())
        await serving.until(lambda status: status.queue.staging_buffers_in_use == 2 and status.queue.waiting == 1)
        for stream in streams:
            stream.cancel()
        await serving.until_idle()
    assert await serving.central(LARGE) == before
    for worker in workers:
        await serving.next_commit_works(worker)


async def test_torn_commit_leaves_nothing_in_the_buffer_that_the_next_commit_gets(serve: Serve) -> None:
    """A staging buffer is used again: what an illegal or torn delta left there must not be applied with another."""
    serving = await serve(staging_buffers=1, rule="downpour")
    (worker,) = await serving.training(1, LARGE)
    giants = LARGE.random_values(3, scale=1e20)
    stream = worker.commit_stream()
    torn = worker.prepare(giants, chunk_bytes=40 * 1024)
    await stream.send_opening(torn)
    for message in torn.chunk_messages():
        await stream.send(message)
    stream.cancel()
    await serving.until_idle()
    outcome = await worker.commit(worker.delta(1))
    assert abs(outcome.reply.values.parameters).max() < 100


async def test_stream_without_any_message_does_no_harm(serving: Serving) -> None:
    (worker,) = await serving.training(1, SMALL)
    async with serving.unchanged(worker):
        stream = worker.commit_stream()
        await stream.end()


async def test_torn_commit_is_not_repeated_by_its_sequence(serving: Serving) -> None:
    """A header that announces sequence 1 once more after a tear is no duplicate: nothing was applied."""
    (worker,) = await serving.training(1, LARGE)
    commit = large_commit(worker).repeated()
    stream = worker.commit_stream()
    await send_part(stream, commit, 3)
    stream.cancel()
    outcome = await worker.commit_on_new_stream(commit)
    assert not outcome.verdict.duplicate
    await refused(worker.commit_on_new_stream(worker.prepare(worker.delta(7), sequence=5)), "SEQUENCE_GAP")
