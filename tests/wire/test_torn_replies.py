"""A reply torn anywhere: the worker resumes, and holds exactly what the server believes it holds (s_w)."""

import asyncio

import numpy as np
import pytest

from tests.wire.conftest import Serve
from tests.wire.model import LARGE, PARAMETER_WIRE_TYPES
from tests.wire.serving import Serving
from tests.wire.worker import Outcome, RawWorker

pytestmark = pytest.mark.usefixtures("each_transport")

CHUNK_BYTES = 40_000
CHUNKS = 6


async def torn_commit(
    serve: Serve, chunks: int, **join_fields: object
) -> tuple[Serving, RawWorker, RawWorker, Outcome]:
    """A worker whose commit was applied and whose reply was torn after so many chunks, and another worker."""
    serving = await serve(chunk_bytes=CHUNK_BYTES)
    worker, other = await serving.training(2, LARGE, **join_fields)
    stream = worker.commit_stream()
    await stream.send_commit(worker.prepare(worker.delta(1)))
    outcome = await stream.outcome(stop_after=chunks)
    assert outcome.verdict.sequence == 1
    assert outcome.reply.chunk_count == chunks
    assert not outcome.reply.complete
    return serving, worker, other, outcome


@pytest.mark.parametrize("chunks", range(CHUNKS + 1))
async def test_reply_torn_at_any_chunk_is_completed_by_a_pull(serve: Serve, chunks: int) -> None:
    """The bytes are those of an untorn reply, though the central variable has moved on; the next commit works."""
    serving, worker, other, outcome = await torn_commit(serve, chunks)
    untorn = await serving.read(LARGE)
    assert untorn.version == outcome.verdict.version
    await other.commit(other.delta(2))
    whole = await worker.resume(outcome.reply)
    assert whole.version == outcome.verdict.version
    assert bytes(whole.payload) == bytes(untorn.payload)
    held = serving.snapshot(worker)
    np.testing.assert_array_equal(held.parameters, whole.values.parameters)
    assert held.rest == whole.values.rest
    following = await worker.commit(worker.delta(3))
    assert following.verdict.sequence == 2
    assert following.verdict.staleness == 1


@pytest.mark.parametrize("wire_type", PARAMETER_WIRE_TYPES)
async def test_reply_torn_in_any_wire_type_is_completed_by_a_pull(serve: Serve, wire_type: int) -> None:
    """s_w stays unrounded, whatever the worker was sent."""
    serving, worker, _, outcome = await torn_commit(serve, 1, parameter_wire_types=[wire_type])
    whole = await worker.resume(outcome.reply)
    untorn = await serving.read(LARGE, wire_type=wire_type)
    assert bytes(whole.payload) == bytes(untorn.payload)
    exact = await serving.read(LARGE)
    np.testing.assert_array_equal(serving.snapshot(worker).parameters, exact.values.parameters)
    assert (await worker.commit(worker.delta(3))).verdict.staleness == 0


async def test_torn_reply_may_be_torn_again_while_it_is_resumed(serve: Serve) -> None:
    serving, worker, other, outcome = await torn_commit(serve, 1)
    torn = outcome.reply
    untorn = await serving.read(LARGE)
    await other.commit(other.delta(2))
    more = await worker.pull(resume_version=torn.version, stop_after=2)
    assert bytes(more.payload) == bytes(untorn.payload)[: len(more.payload)]
    whole = await worker.resume(more)
    assert bytes(whole.payload) == bytes(untorn.payload)


async def test_torn_reply_may_be_given_up_for_a_pull_from_the_start(serve: Serve) -> None:
    serving, worker, other, _ = await torn_commit(serve, 3)
    await other.commit(other.delta(2))
    pulled = await worker.pull()
    assert pulled.clock == 3
    np.testing.assert_array_equal(serving.snapshot(worker).parameters, pulled.values.parameters)
    assert (await worker.commit(worker.delta(3))).verdict.staleness == 0


async def test_torn_reply_may_be_asked_for_again_by_repeating_the_header(serve: Serve) -> None:
    serving, worker, other, outcome = await torn_commit(serve, 2)
    await other.commit(other.delta(2))
    worker.sequence = 0
    repeat = worker.prepare(worker.delta(1)).repeated()
    worker.sequence = 1
    stream = worker.commit_stream()
    await stream.send(repeat.opening())
    answer = await stream.outcome()
    assert answer.verdict.duplicate
    assert answer.reply.version == outcome.verdict.version
    np.testing.assert_array_equal(serving.snapshot(worker).parameters, answer.reply.values.parameters)
    assert (await worker.commit(worker.delta(3))).verdict.sequence == 2


async def test_next_commit_needs_no_complete_reply_only_the_right_base(serve: Serve) -> None:
    """The server knows that the snapshot is of this version; that the worker read all of it is the worker's word."""
    _, worker, _, outcome = await torn_commit(serve, 5)
    worker.version = outcome.verdict.version
    following = await worker.commit(worker.delta(3))
    assert following.verdict.sequence == 2


async def test_reply_lost_with_the_connection_is_completed_over_another(serve: Serve) -> None:
    serving, worker, other, outcome = await torn_commit(serve, 2)
    untorn = await serving.read(LARGE)
    await worker.close()
    await other.commit(other.delta(2))
    back = serving.adopt(worker.twin(worker.session_id))
    assert (await back.join()).last_applied_sequence == 1
    whole = await back.resume(outcome.reply)
    assert bytes(whole.payload) == bytes(untorn.payload)
    await serving.next_commit_works(back)


async def test_worker_that_goes_while_a_reply_is_written_to_it_is_no_failure_of_the_server(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """Its log stays without a traceback, at whatever moment the worker goes."""
    serving = await serve(chunk_bytes=CHUNK_BYTES)
    for moment in range(40):
        worker = serving.worker(LARGE, "goes", reads_ahead=False)
        await worker.join()
        if not worker.membership.has_parameters:
            await worker.initialize()
        await worker.pull()
        stream = worker.commit_stream()
        await stream.send_commit(worker.prepare(worker.delta(moment)))
        for _ in range(moment % 20):
            await asyncio.sleep(0)
        await worker.close()
    await serving.until_idle()
    assert [record.message for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []
