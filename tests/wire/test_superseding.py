"""A newer stream of a session ends the older stream, a newer session of a name the older session; never a commit."""

import numpy as np
import pytest

from tests.wire.conftest import Serve
from tests.wire.model import LARGE, SMALL
from tests.wire.refusals import refused
from tests.wire.serving import Serving

pytestmark = pytest.mark.usefixtures("each_transport")


async def test_newer_stream_ends_the_older_one_that_uploads(serve: Serve) -> None:
    """This also holds if the older one has the only buffer, which the newer one then gets."""
    serving = await serve(staging_buffers=1)
    (worker,) = await serving.training(1, LARGE)
    commit = worker.prepare(worker.delta(1), chunk_bytes=64 * 1024)
    older = worker.commit_stream()
    await older.send_opening(commit)
    await older.send(commit.chunk_messages()[0])
    newer = worker.commit_stream()
    await newer.send_commit(commit)
    await older.refused("NEWER_CALL")
    outcome = await newer.outcome()
    assert not outcome.verdict.duplicate
    assert outcome.verdict.version.clock == 2
    await serving.next_commit_works(worker)


async def test_newer_stream_ends_the_older_one_that_waits_for_a_buffer(serve: Serve) -> None:
    serving = await serve(staging_buffers=1, waiting_room=1)
    other, worker = await serving.training(2, LARGE)
    held = other.commit_stream()
    await held.send_opening(other.prepare(other.delta(1)))
    older = worker.commit_stream()
    await older.send(worker.prepare(worker.delta(1)).opening())
    await serving.until_waiting(1)
    newer = worker.commit_stream()
    await newer.send(worker.prepare(worker.delta(1)).opening())
    await older.refused("NEWER_CALL")
    held.cancel()
    await newer.proceed()
    newer.cancel()
    await serving.until_idle()


async def test_newer_stream_ends_the_older_one_that_rests(serving: Serving) -> None:
    """The older stream is between two commits."""
    (worker,) = await serving.training(1)
    older = worker.commit_stream()
    await older.send_commit(worker.prepare(worker.delta(1)))
    await older.outcome()
    newer = worker.commit_stream()
    await newer.send_commit(worker.prepare(worker.delta(2)))
    await older.refused("NEWER_CALL")
    assert (await newer.outcome()).verdict.sequence == 2


async def test_refused_header_on_a_newer_stream_changes_nothing(serving: Serving) -> None:
    (worker,) = await serving.training(1)
    async with serving.unchanged(worker):
        wrong = worker.prepare(worker.delta(1), sequence=7)
        await refused(worker.commit_on_new_stream(wrong), "SEQUENCE_GAP")


async def test_newer_session_of_the_same_name_ends_the_older_ones_stream(serve: Serve) -> None:
    """This also holds if the older session has the only buffer."""
    serving = await serve(staging_buffers=1)
    (older,) = await serving.training(1, LARGE)
    commit = older.prepare(older.delta(1), chunk_bytes=64 * 1024)
    stream = older.commit_stream()
    await stream.send_opening(commit)
    await stream.send(commit.chunk_messages()[0])
    newer = serving.adopt(older.twin())
    answer = await newer.join()
    assert answer.rank == 0
    assert answer.last_applied_sequence == 0
    refusal = await stream.refused("NEWER_SESSION")
    assert "name" in refusal.message
    await newer.pull()
    await serving.next_commit_works(newer)


@pytest.mark.parametrize("call", ["commit", "pull", "heartbeat", "initialize"])
async def test_superseded_session_is_told_so_in_every_later_call(serving: Serving, call: str) -> None:
    """With UNKNOWN_SESSION it would join again, and two workers would end each other's sessions forever."""
    (older,) = await serving.training(1)
    newer = serving.adopt(older.twin())
    await newer.join()
    await newer.pull()
    async with serving.unchanged(newer):
        calls = {
            "commit": lambda: older.commit_on_new_stream(older.prepare(older.delta(1))),
            "pull": older.pull,
            "heartbeat": older.heartbeat,
            "initialize": older.initialize,
        }
        await refused(calls[call](), "NEWER_SESSION")


async def test_newer_session_of_the_same_name_begins_without_a_moment(serving: Serving) -> None:
    """A delta never crosses a session id, and neither does the moment: pi of a first commit is at most 1."""
    (older,) = await serving.training(1)
    delta = SMALL.random_values(1, scale=0.01)
    for _ in range(4):
        await older.commit(delta)
    newer = serving.adopt(older.twin())
    await newer.join()
    before = (await newer.pull()).values.parameters
    after = (await newer.commit(delta)).reply.values.parameters
    # m = delta, theta = s: pi = |delta| / (|delta| + 1e-12), so the update is the delta itself.
    np.testing.assert_allclose(after - before, delta.parameters, rtol=1e-3, atol=1e-6)


async def test_worker_of_another_name_is_left_alone(serving: Serving) -> None:
    ada, bob = await serving.training(2)
    newer = serving.adopt(ada.twin())
    await newer.join()
    await serving.next_commit_works(bob)
