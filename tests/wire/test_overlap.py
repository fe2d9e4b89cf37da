"""A worker that computes its next gradient while a commit is in flight: theta - s is exact, whichever s that was of."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from gem_server.durability import recovery
from gemps.v1 import transfer_pb2
from numpy.typing import NDArray

from tests.core import slow
from tests.wire.conftest import Serve
from tests.wire.model import LARGE, SMALL, Model, Tensor, Values
from tests.wire.pipeline import Pipeline
from tests.wire.refusals import refused
from tests.wire.serving import Serving
from tests.wire.worker import Outcome, all_of

ONE = Model((Tensor("weight", (1,)),))
BOTH_SIZES = pytest.mark.parametrize("model", [SMALL, LARGE], ids=["whole", "chunked"])


class Transcription:
    """The equations of docs/design.md, section 2, with every version's parameters kept, so that s is any of them."""

    def __init__(self, first: Values, dtype: type[np.floating]) -> None:
        self.dtype = dtype
        self.theta: NDArray[np.floating] = first.parameters.astype(dtype)
        self.versions = {1: self.theta}
        self.moments: dict[str, NDArray[np.floating]] = {}

    def commit(self, worker: str, base_clock: int, delta: NDArray[np.float32]) -> slow.Outcome:
        moment = self.moments.get(worker, np.zeros_like(self.theta))
        found = slow.gem(self.theta, self.versions[base_clock], moment, delta, slow.GemSettings(), self.dtype)
        self.theta, self.moments[worker] = found.theta, found.moment
        self.versions[len(self.versions) + 1] = self.theta
        return found


async def pipelines(serving: Serving, count: int, model: Model = SMALL) -> list[Pipeline]:
    return [Pipeline(worker) for worker in await serving.training(count, model, overlap=True)]


async def train(
    serving: Serving, workers: Sequence[Pipeline], transcription: Transcription, order: Sequence[int]
) -> Outcome:
    """Commits in the given order of workers; every verdict and every reply must be the transcription's."""
    for number, index in enumerate(order):
        pipeline = workers[index]
        delta, base = pipeline.worker.delta(100 + number), pipeline.base.clock
        expected = transcription.commit(pipeline.worker.name, base, delta.parameters)
        outcome = await pipeline.commit(delta)
        clock = len(transcription.versions)
        assert outcome.verdict.version.clock == outcome.reply.version.clock == clock
        assert outcome.verdict.staleness == clock - 1 - base
        assert outcome.verdict.statistics.drift_norm == pytest.approx(slow.norm(expected.drift), rel=1e-5)
        np.testing.assert_array_equal(outcome.reply.values.parameters, expected.theta)
        np.testing.assert_array_equal(serving.snapshot(pipeline.worker).parameters, expected.theta)
        assert outcome.reply.values.rest == delta.rest
    return outcome


async def test_overlap_is_granted_to_who_asks(serving: Serving) -> None:
    assert (await serving.worker().join(overlap=True)).overlap
    assert not (await serving.worker().join()).overlap


async def test_joining_again_tells_what_was_granted_at_first(serving: Serving) -> None:
    worker = await serving.joined(overlap=True)
    assert (await worker.join(overlap=False)).overlap


@BOTH_SIZES
async def test_drift_is_exact_for_the_snapshot_of_the_gradient_bit_for_bit(serving: Serving, model: Model) -> None:
    workers = await pipelines(serving, 2, model)
    transcription = Transcription(await serving.values(model), np.float32)
    order = [0, 0, 1, 0, 1, 1, 1, 0, 0, 1, 0, 1, 1, 0, 0, 0]
    await train(serving, workers, transcription, order)
    for pipeline in workers:
        await pipeline.pull()
    await train(serving, workers, transcription, order)


async def test_overlapping_and_other_workers_train_together(serving: Serving) -> None:
    (ada,) = await pipelines(serving, 1)
    (bob,) = await serving.training(1)
    transcription = Transcription(await serving.values(), np.float32)
    for seed in range(6):
        await train(serving, [ada], transcription, [0, 0])
        delta, base = bob.delta(seed), bob.version.clock
        expected = transcription.commit(bob.name, base, delta.parameters)
        np.testing.assert_array_equal((await bob.commit(delta)).reply.values.parameters, expected.theta)


async def test_worked_example_of_two_workers(serving: Serving) -> None:
    """One element, theta = 0, defaults; each commits twice before its first reply's parameters count.

    A .1 at s = 0: m .1, drift 0, pi 1, theta .1.       B .1 at s = 0: m .1, drift .1, pi 0, theta .1.
    A .1 at s = 0: m .19, drift .1, pi .9, theta .19.   B .2 at s = 0: m .29, drift .19, pi .5, theta .29.
    A .1 at s = .1 (its first reply): m .271, drift .19, pi .81, theta .371.
    """
    ada, bob = [await serving.joined(ONE, overlap=True) for _ in range(2)]
    await ada.initialize(Values(np.zeros(1, np.float32)))
    for worker in (ada, bob):
        await worker.pull()
    first, second = Pipeline(ada), Pipeline(bob)
    thetas, staleness = [], []
    for pipeline, delta in ((first, 0.1), (second, 0.1), (first, 0.1), (second, 0.2), (first, 0.1)):
        outcome = await pipeline.commit(Values(np.float32([delta])))
        thetas.append(float(outcome.reply.values.parameters[0]))
        staleness.append(outcome.verdict.staleness)
    assert thetas == pytest.approx([0.1, 0.1, 0.19, 0.29, 0.371], abs=1e-6)
    assert staleness == [0, 1, 2, 3, 3]


async def test_one_worker_alone_has_a_staleness_of_one(serving: Serving) -> None:
    (pipeline,) = await pipelines(serving, 1)
    found = [(await pipeline.commit(pipeline.worker.delta(seed))).verdict.staleness for seed in range(5)]
    assert found == [0, 1, 1, 1, 1]


@BOTH_SIZES
async def test_newest_version_is_a_base_too_and_stays_one(serving: Serving, model: Model) -> None:
    """After a skipped step nothing is in flight: the gradient is of the newest parameters, and so is the one after."""
    (pipeline,) = await pipelines(serving, 1, model)
    transcription = Transcription(await serving.values(model), np.float32)
    for _ in range(3):
        await train(serving, [pipeline], transcription, [0, 0, 0])
        pipeline.base = pipeline.worker.version
    await train(serving, [pipeline], transcription, [0])
    pipeline.base = pipeline.worker.version
    await train(serving, [pipeline], transcription, [0, 0])


async def test_two_arrays_are_written_in_turn_and_never_the_newest(serving: Serving) -> None:
    (pipeline,) = await pipelines(serving, 1)
    (session,) = serving.server.sessions.live()
    held = session.held
    assert held is not None
    seen = []
    for seed in range(4):
        before = held.newest.parameters
        await pipeline.commit(pipeline.worker.delta(seed))
        assert held.newest.parameters is not before
        seen.append(held.newest.parameters)
    await pipeline.pull()
    assert seen[0] is seen[2]
    assert seen[1] is seen[3]
    assert {id(one) for one in (held.newest.parameters, held.next.parameters)} == {id(one) for one in seen}


async def test_a_version_before_the_last_two_is_refused(serving: Serving) -> None:
    (pipeline,) = await pipelines(serving, 1)
    worker, oldest = pipeline.worker, pipeline.worker.version
    for seed in range(2):
        await pipeline.commit(worker.delta(seed))
    assert oldest.clock == worker.version.clock - 2
    refusal = await serving.refuses(worker, worker.prepare(worker.delta(9), base_version=oldest), "STALE_BASE")
    assert "pull" in refusal.message.lower()


async def test_versions_of_others_between_the_two_are_refused(serving: Serving) -> None:
    pipeline, other = await pipelines(serving, 2)
    worker = pipeline.worker
    await pipeline.commit(worker.delta(1))
    for seed in range(2):
        await other.commit(other.worker.delta(seed))
    await pipeline.commit(worker.delta(2))
    between = transfer_pb2.Version(incarnation=worker.version.incarnation, clock=3)
    await serving.refuses(worker, worker.prepare(worker.delta(9), base_version=between), "STALE_BASE")


async def test_a_pull_leaves_one_base(serving: Serving) -> None:
    pipeline, other = await pipelines(serving, 2)
    worker = pipeline.worker
    for moved_on in (True, False):
        await pipeline.commit(worker.delta(1))
        await pipeline.commit(worker.delta(2))
        before = pipeline.base
        if moved_on:
            await other.commit(other.worker.delta(3))
        await pipeline.pull()
        await serving.refuses(worker, worker.prepare(worker.delta(9), base_version=before), "STALE_BASE")
        await pipeline.pull()


async def test_without_overlap_the_version_before_the_last_is_refused(serving: Serving) -> None:
    (worker,) = await serving.training(1)
    before = worker.version
    await worker.commit(worker.delta(1))
    await serving.refuses(worker, worker.prepare(worker.delta(2), base_version=before), "STALE_BASE")


async def test_one_commit_is_in_flight_at_a_time(serve: Serve) -> None:
    """The next of two waits for the first one's verdict; sent before it, it is refused, and the first is applied."""
    serving = await serve(order="round-robin", min_workers=2)
    other, worker = await serving.training(2, overlap=True)
    turn = other.prepare(other.delta(4))
    others = other.commit_stream()
    await others.send_opening(turn)
    await worker.commit_stream().send_commit(worker.prepare(worker.delta(1)))  # complete, and not its turn yet
    await serving.until_queued(1)
    early = worker.prepare(worker.delta(2), sequence=2)
    await refused(worker.commit_on_new_stream(early), "SEQUENCE_GAP")
    await others.send_rest(turn)
    await others.outcome()
    await serving.until(lambda status: status.commits == 2)
    assert (await worker.heartbeat()).last_applied_sequence == 1
    repeat = await worker.commit_stream().outcome_of_repeat(worker.prepare(worker.delta(1)))
    assert repeat.verdict.duplicate
    assert repeat.verdict.version.clock == 3


@BOTH_SIZES
async def test_repeat_gets_the_stored_verdict_and_leaves_both_bases(serving: Serving, model: Model) -> None:
    pipeline, other = await pipelines(serving, 2, model)
    worker = pipeline.worker
    transcription = Transcription(await serving.values(model), np.float32)
    await train(serving, [pipeline], transcription, [0, 0])
    base, installed = pipeline.base, worker.version
    transcription.commit(worker.name, base.clock, worker.delta(1).parameters)
    commit = worker.prepare(worker.delta(1), base_version=base)
    original = await worker.commit_on_new_stream(commit)
    await train(serving, [other], transcription, [0])
    stream = worker.commit_stream()
    repeat = await stream.outcome_of_repeat(commit)
    assert repeat.verdict.duplicate
    assert repeat.verdict.version == original.verdict.version
    assert bytes(repeat.reply.payload) == bytes(original.reply.payload)
    pipeline.base = installed
    await train(serving, [pipeline], transcription, [0, 0, 0])


async def test_torn_reply_is_resumed_and_the_next_commit_has_its_base(serve: Serve) -> None:
    serving = await serve(chunk_bytes=40_000)
    pipeline, other = await pipelines(serving, 2, LARGE)
    worker = pipeline.worker
    transcription = Transcription(await serving.values(LARGE), np.float32)
    await train(serving, [pipeline], transcription, [0, 0])
    base, installed = pipeline.base, worker.version
    delta = worker.delta(1)
    expected = transcription.commit(worker.name, base.clock, delta.parameters)
    stream = worker.commit_stream()
    await stream.send_commit(worker.prepare(delta, base_version=base))
    torn = (await stream.outcome(stop_after=1)).reply
    await train(serving, [other], transcription, [0])
    np.testing.assert_array_equal((await worker.resume(torn)).values.parameters, expected.theta)
    pipeline.base = installed
    await train(serving, [pipeline], transcription, [0, 0])


async def test_a_third_vector_is_promised_and_refused_beyond_the_limit(serve: Serve) -> None:
    vector = 4 * LARGE.parameter_count
    serving = await serve()
    reserved = []
    for overlap in (False, True, False):
        await serving.joined(LARGE, overlap=overlap)
        reserved.append(serving.server.sessions.memory.reserved)
    # Each version of a BUFFER is an object of its own.
    buffers = LARGE.byte_count() - vector + 64 * len(LARGE.of_kind("buffer"))
    assert reserved[1] - reserved[0] == 3 * vector + 2 * buffers
    assert reserved[2] - reserved[1] == 2 * vector + buffers

    limit = reserved[1] - vector
    tight = await serve(memory_limit=limit)
    await tight.joined(LARGE)
    refusal = await refused(tight.worker(LARGE).join(overlap=True), "MEMORY")
    assert "--overlap" in refusal.message
    await tight.joined(LARGE)


async def test_memory_is_given_back_when_the_session_ends(serving: Serving) -> None:
    await serving.joined()
    memory = serving.server.sessions.memory
    before = memory.reserved
    worker = await serving.joined(overlap=True)
    assert memory.reserved > before
    await worker.leave()
    assert memory.reserved == before


async def test_old_gradients_of_both_versions_are_dropped_after_a_restart(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(data_dir=tmp_path, durability="commit")
    (pipeline,) = await pipelines(serving, 1)
    transcription = Transcription(await serving.values(), np.float32)
    await train(serving, [pipeline], transcription, [0, 0, 0, 0])
    bases = (pipeline.base, pipeline.worker.version)
    await serving.close()
    await serving.stop()

    serving = await serve(data_dir=tmp_path, durability="commit", resume=True)
    np.testing.assert_array_equal((await serving.values()).parameters, transcription.theta)
    worker = pipeline.worker
    worker.address = serving.address
    back = serving.adopt(worker.twin(worker.session_id))
    assert (await back.join()).last_applied_sequence == 4
    for base in bases:
        await refused(back.commit_on_new_stream(back.prepare(back.delta(1), base_version=base)), "UNKNOWN_INCARNATION")
    await back.pull()
    transcription.moments.clear()  # m is 0 after a restart
    again = Pipeline(back)
    await train(serving, [again], transcription, [0, 0, 0])


async def test_log_has_what_overlapping_workers_were_told(serve: Serve, tmp_path: Path) -> None:
    """Groups are written from snapshots that rotate: what is recovered is what came last, bit for bit."""
    serving = await serve(data_dir=tmp_path, durability="commit", checkpoint_interval=0)
    workers = await pipelines(serving, 3, LARGE)
    for seed in range(8):
        outcomes = await all_of(*(one.commit(one.worker.delta(seed)) for one in workers))
        newest = max(outcomes, key=lambda outcome: outcome.verdict.version.clock)
        recovered = recovery.recover(tmp_path)
        assert recovered is not None
        assert recovered.whole.clock == newest.verdict.version.clock
        assert recovered.whole.parameters.tobytes() + recovered.whole.buffers == bytes(newest.reply.payload)
