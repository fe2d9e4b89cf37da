"""(session, sequence) names a commit, and it counts once, however often it is sent (docs/design.md, section 3)."""

import numpy as np
import pytest

from tests.wire.conftest import Serve
from tests.wire.model import LARGE, SMALL, Model
from tests.wire.serving import Serving
from tests.wire.worker import Outcome, RawWorker

pytestmark = pytest.mark.usefixtures("each_transport_and_tls")

BOTH_SIZES = pytest.mark.parametrize("model", [SMALL, LARGE], ids=["whole", "chunked"])


def assert_repeats(repeat: Outcome, original: Outcome) -> None:
    """A repeat's verdict is the stored one; run_state and next_eta are about the next commit, so they may be of now."""
    assert repeat.verdict.duplicate
    assert not original.verdict.duplicate
    for field in ("sequence", "version", "staleness", "statistics"):
        assert getattr(repeat.verdict, field) == getattr(original.verdict, field)


async def repeat_header(worker: RawWorker, commit: object) -> Outcome:
    """Sends only the header again, as a worker does that wants the verdict it missed."""
    stream = worker.commit_stream()
    await stream.send(commit.repeated().opening())
    return await stream.outcome()


@BOTH_SIZES
async def test_repeated_header_gets_the_stored_verdict_and_current_parameters(serving: Serving, model: Model) -> None:
    (worker,) = await serving.training(1, model)
    commit = worker.prepare(worker.delta(1))
    original = await worker.commit_on_new_stream(commit)
    before = await serving.central(model)
    repeat = await repeat_header(worker, commit)
    assert_repeats(repeat, original)
    assert repeat.reply.version == original.reply.version
    assert bytes(repeat.reply.payload) == bytes(original.reply.payload)
    assert await serving.central(model) == before
    assert (await serving.status()).workers[0].duplicates == 1
    await serving.next_commit_works(worker)


async def test_whole_commit_sent_again_gets_the_stored_verdict(serving: Serving) -> None:
    """A retry sends identical bytes, chunk and footer included; they are read and dropped."""
    (worker,) = await serving.training(1)
    commit = worker.prepare(worker.delta(1)).repeated()
    original = await worker.commit_on_new_stream(commit)
    for _ in range(3):
        assert_repeats(await worker.commit_on_new_stream(commit), original)
    assert (await serving.status()).commits == 1
    await serving.next_commit_works(worker)


async def test_repeat_and_next_commit_go_through_one_stream(serving: Serving) -> None:
    (worker,) = await serving.training(1)
    commit = worker.prepare(worker.delta(1)).repeated()
    stream = worker.commit_stream()
    await stream.send_commit(commit)
    original = await stream.outcome()
    await stream.send(commit.opening())
    assert_repeats(await stream.outcome(), original)
    await stream.send_commit(worker.prepare(worker.delta(2)))
    assert (await stream.outcome()).verdict.sequence == 2
    await stream.end()


async def test_repeat_gets_the_sessions_snapshot_not_the_central_variable(serving: Serving) -> None:
    """Parameters of a repeat are the current s_w with its own version."""
    worker, other = await serving.training(2)
    commit = worker.prepare(worker.delta(1))
    original = await worker.commit_on_new_stream(commit)
    await other.commit(other.delta(2))
    repeat = await repeat_header(worker, commit)
    assert repeat.reply.version == original.reply.version
    assert bytes(repeat.reply.payload) == bytes(original.reply.payload)
    np.testing.assert_array_equal(serving.snapshot(worker).parameters, repeat.reply.values.parameters)
    assert (await worker.commit(worker.delta(3))).verdict.staleness == 1


async def test_repeat_after_a_pull_gets_the_newer_snapshot(serving: Serving) -> None:
    """The pull has refreshed s_w: the repeat's parameters have that version, its verdict the version it made."""
    worker, other = await serving.training(2)
    commit = worker.prepare(worker.delta(1))
    original = await worker.commit_on_new_stream(commit)
    await other.commit(other.delta(2))
    pulled = await worker.pull()
    assert pulled.clock == 3
    repeat = await repeat_header(worker, commit)
    assert_repeats(repeat, original)
    assert repeat.verdict.version.clock == 2
    assert repeat.reply.version == pulled.version
    assert bytes(repeat.reply.payload) == bytes(pulled.payload)
    assert (await worker.commit(worker.delta(3))).verdict.staleness == 0


async def test_repeat_is_answered_when_the_run_is_finished(serve: Serve) -> None:
    serving = await serve(commits=1)
    (worker,) = await serving.training(1)
    commit = worker.prepare(worker.delta(1))
    original = await worker.commit_on_new_stream(commit)
    assert_repeats(await repeat_header(worker, commit), original)


async def test_repeat_is_answered_while_all_buffers_are_held(serve: Serve) -> None:
    """It needs none: it is answered at once, without proceed."""
    serving = await serve(staging_buffers=1, waiting_room=1)
    worker, first, second = await serving.training(3, LARGE)
    commit = worker.prepare(worker.delta(1))
    original = await worker.commit_on_new_stream(commit)
    held = first.commit_stream()
    await held.send_opening(first.prepare(first.delta(1)))
    waiting = second.commit_stream()
    await waiting.send(second.prepare(second.delta(1)).opening())
    await serving.until_waiting(1)
    assert_repeats(await repeat_header(worker, commit), original)
    held.cancel()
    await waiting.proceed()
    waiting.cancel()
    await serving.until_idle()


async def test_repeat_over_another_connection_after_joining_again_counts_once(serving: Serving) -> None:
    """A worker that lost its connection comes back with the same session id."""
    (worker,) = await serving.training(1)
    commit = worker.prepare(worker.delta(1))
    original = await worker.commit_on_new_stream(commit)
    await worker.close()
    back = serving.adopt(worker.twin(worker.session_id))
    assert (await back.join()).last_applied_sequence == 1
    assert (await back.heartbeat()).last_applied_sequence == 1
    assert_repeats(await repeat_header(back, commit), original)
    assert (await serving.status()).commits == 1


@BOTH_SIZES
async def test_equal_deltas_in_two_sequences_are_two_commits(serving: Serving, model: Model) -> None:
    """Content alone never makes a duplicate."""
    (worker,) = await serving.training(1, model)
    delta = worker.delta(1)
    outcomes = [await worker.commit(delta) for _ in range(3)]
    assert [outcome.verdict.version.clock for outcome in outcomes] == [2, 3, 4]
    assert not any(outcome.verdict.duplicate for outcome in outcomes)


async def test_refused_commit_consumes_no_sequence(serving: Serving) -> None:
    (worker,) = await serving.training(1)
    commit = worker.prepare(worker.delta(1))
    await serving.refuses(worker, commit.with_footer(crc32c=commit.footer.crc32c ^ 1), "CHECKSUM")
    # `refuses` has shown that sequence 1 was still to be had.
    assert (await worker.heartbeat()).last_applied_sequence == 1
