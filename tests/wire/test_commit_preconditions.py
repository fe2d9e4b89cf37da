"""A commit that is well-formed but not now, or not here, is refused by its header, and changes nothing."""

import os

import pytest
from gemps.v1 import status_pb2, transfer_pb2

from tests.wire.conftest import Serve
from tests.wire.model import LARGE, SMALL, Model
from tests.wire.refusals import refused
from tests.wire.serving import Serving
from tests.wire.worker import RawWorker

pytestmark = pytest.mark.usefixtures("each_transport_and_tls")

EXPIRED = status_pb2.WORKER_STATE_EXPIRED
BOTH_SIZES = pytest.mark.parametrize("model", [SMALL, LARGE], ids=["whole", "chunked"])


async def training_worker(serving: Serving, model: Model = SMALL, commits: int = 2) -> RawWorker:
    """A worker that has committed a few times."""
    (worker,) = await serving.training(1, model)
    for seed in range(commits):
        await worker.commit(worker.delta(seed))
    return worker


# -- sessions ----------------------------------------------------------------------------------------------------------


@BOTH_SIZES
async def test_commit_of_an_unknown_session_is_refused(serving: Serving, model: Model) -> None:
    worker = await training_worker(serving, model)
    commit = worker.prepare(worker.delta(9), session_id=os.urandom(16))
    refusal = await serving.refuses(worker, commit, "UNKNOWN_SESSION")
    assert "join" in refusal.message.lower()


async def test_commit_of_an_expired_session_is_refused_and_joining_again_helps(serve: Serve) -> None:
    serving = await serve(session_timeout=0.2)
    worker = await training_worker(serving)
    await worker.close()
    await serving.until(lambda status: status.workers[0].state == EXPIRED)
    back = serving.adopt(worker.twin(worker.session_id))
    before = await serving.central(SMALL)
    refusal = await refused(back.commit_on_new_stream(back.prepare(back.delta(9))), "EXPIRED_SESSION")
    assert "join" in refusal.message.lower()
    await refused(back.pull(), "EXPIRED_SESSION")
    await refused(back.heartbeat(), "EXPIRED_SESSION")
    assert await serving.central(SMALL) == before
    await back.join()
    await back.pull()
    await serving.next_commit_works(back)


async def test_session_that_expired_holds_nothing_until_it_pulls_again(serve: Serve) -> None:
    serving = await serve(session_timeout=0.2)
    worker = await training_worker(serving)
    await worker.close()
    await serving.until(lambda status: status.workers[0].state == EXPIRED)
    back = serving.adopt(worker.twin(worker.session_id))
    await back.join()
    await refused(back.commit_on_new_stream(back.prepare(back.delta(9))), "STALE_BASE")


async def test_open_stream_keeps_a_session_alive(serve: Serve) -> None:
    """Any running call counts as life (docs/design.md, section 4)."""
    serving = await serve(session_timeout=0.2, max_sessions=8)
    worker = await training_worker(serving)
    assert worker.has_stream
    ghost = await serving.joined(name="ghost")
    await ghost.close()
    # When the ghost has expired, the timeout has passed for the worker too.
    await serving.until(lambda status: status.workers[1].state == EXPIRED)
    outcome = await worker.commit(worker.delta(9))
    assert outcome.verdict.sequence == 3


async def test_commit_after_leave_is_refused(serving: Serving) -> None:
    worker = await training_worker(serving)
    await worker.leave()
    before = await serving.central(SMALL)
    await refused(worker.commit_on_new_stream(worker.prepare(worker.delta(9))), "UNKNOWN_SESSION")
    assert await serving.central(SMALL) == before


async def test_leave_ends_the_sessions_open_stream(serving: Serving) -> None:
    worker = await training_worker(serving)
    stream = worker.commit_stream()
    await stream.send_opening(worker.prepare(worker.delta(9)))
    await worker.leave()
    await stream.refused("UNKNOWN_SESSION")
    await serving.until_idle()


# -- versions ----------------------------------------------------------------------------------------------------------


@BOTH_SIZES
async def test_base_version_of_an_unknown_incarnation_is_refused(serving: Serving, model: Model) -> None:
    worker = await training_worker(serving, model)
    other = transfer_pb2.Version(incarnation=worker.version.incarnation ^ 1, clock=worker.version.clock)
    refusal = await serving.refuses(worker, worker.prepare(worker.delta(9), base_version=other), "UNKNOWN_INCARNATION")
    assert "pull" in refusal.message.lower()


@BOTH_SIZES
@pytest.mark.parametrize("difference", [-1, 1])
async def test_base_version_that_is_not_the_snapshots_is_refused(
    serving: Serving, model: Model, difference: int
) -> None:
    worker = await training_worker(serving, model)
    base = transfer_pb2.Version(incarnation=worker.version.incarnation, clock=worker.version.clock + difference)
    refusal = await serving.refuses(worker, worker.prepare(worker.delta(9), base_version=base), "STALE_BASE")
    assert "pull" in refusal.message.lower()


async def test_current_version_is_a_stale_base_where_the_session_holds_an_older_one(serving: Serving) -> None:
    """The base is what this worker holds, not what the server has."""
    worker, other = await serving.training(2)
    ahead = (await other.commit(other.delta(1))).verdict.version
    await serving.refuses(worker, worker.prepare(worker.delta(9), base_version=ahead), "STALE_BASE")


async def test_missing_base_version_is_refused(serving: Serving) -> None:
    worker = await training_worker(serving)
    nothing = transfer_pb2.Version()
    await serving.refuses(
        worker, worker.prepare(worker.delta(9), base_version=nothing), "STALE_BASE", "UNKNOWN_INCARNATION", "MALFORMED"
    )


@BOTH_SIZES
async def test_commit_before_the_first_pull_is_refused(serving: Serving, model: Model) -> None:
    """Join never sets what a worker holds."""
    first = await training_worker(serving, model)
    fresh = await serving.joined(model)
    before = await serving.central(model)
    commit = fresh.prepare(fresh.delta(9), base_version=first.version)
    await refused(fresh.commit_on_new_stream(commit), "STALE_BASE")
    assert await serving.central(model) == before
    await fresh.pull()
    await serving.next_commit_works(fresh)


async def test_initialize_does_not_set_what_the_worker_holds(serving: Serving) -> None:
    """Only a completed Pull or commit does."""
    worker = await serving.joined()
    version = (await worker.initialize()).version
    await refused(worker.commit_on_new_stream(worker.prepare(worker.delta(9), base_version=version)), "STALE_BASE")


@BOTH_SIZES
async def test_commit_before_initialize_is_refused(serving: Serving, model: Model) -> None:
    worker = await serving.joined(model)
    base = transfer_pb2.Version(incarnation=worker.membership.incarnation, clock=0)
    refusal = await refused(
        worker.commit_on_new_stream(worker.prepare(worker.delta(1), base_version=base)), "NOT_INITIALIZED"
    )
    assert "initialize" in refusal.message.lower()
    assert (await serving.status()).version.clock == 0
    await worker.initialize()
    await worker.pull()
    await serving.next_commit_works(worker)


# -- sequences ---------------------------------------------------------------------------------------------------------


@BOTH_SIZES
@pytest.mark.parametrize("sequence", [4, 5, 2**64 - 1])
async def test_gap_in_the_sequence_is_refused(serving: Serving, model: Model, sequence: int) -> None:
    worker = await training_worker(serving, model)
    refusal = await serving.refuses(worker, worker.prepare(worker.delta(9), sequence=sequence), "SEQUENCE_GAP")
    assert "3" in refusal.message + str(refusal.metadata)


@pytest.mark.parametrize("commits", [0, 2])
async def test_sequence_0_is_refused(serving: Serving, commits: int) -> None:
    """This also holds in a new session, whose last applied sequence is 0, because there is nothing to repeat."""
    worker = await training_worker(serving, commits=commits)
    commit = worker.prepare(worker.delta(9), sequence=0)
    await serving.refuses(worker, commit, "MALFORMED", "SEQUENCE_GAP")
    await serving.refuses(worker, worker.prepare(worker.delta(9), sequence=0).repeated(), "MALFORMED", "SEQUENCE_GAP")


@BOTH_SIZES
async def test_sequence_used_with_other_content_is_refused(serving: Serving, model: Model) -> None:
    worker = await training_worker(serving, model)
    await serving.refuses(worker, worker.prepare(worker.delta(9), sequence=2).repeated(), "SEQUENCE_REUSED")


async def test_sequence_before_the_last_applied_is_refused(serving: Serving) -> None:
    worker = await training_worker(serving, commits=3)
    await serving.refuses(
        worker, worker.prepare(worker.delta(0), sequence=1).repeated(), "SEQUENCE_GAP", "SEQUENCE_REUSED"
    )


async def test_repeat_that_does_not_tell_its_checksum_is_refused(serving: Serving) -> None:
    """Without payload_crc32c it is a new commit, whose sequence is not the next one (commit.proto)."""
    worker = await training_worker(serving, LARGE)
    commit = worker.prepare(worker.delta(1), sequence=2)
    refusal = await serving.refuses(worker, commit, "SEQUENCE_GAP")
    assert refusal.metadata["last_applied"] == "2"


# -- the run -----------------------------------------------------------------------------------------------------------


@BOTH_SIZES
async def test_commit_to_a_finished_run_is_refused(serve: Serve, model: Model) -> None:
    serving = await serve(commits=2)
    worker = await training_worker(serving, model)
    before = await serving.central(model)
    refusal = await refused(worker.commit_on_new_stream(worker.prepare(worker.delta(9))), "RUN_FINISHED")
    assert "leave" in refusal.message.lower()
    assert await serving.central(model) == before
    await serving.until_idle()
