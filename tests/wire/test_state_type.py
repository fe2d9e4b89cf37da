"""A server with bfloat16 state: replies are theta itself, from the staging buffer, and cost no more memory."""

from pathlib import Path

import numpy as np
import pytest
from gem_server.settings import ServerSettings
from gemps.v1 import status_pb2, transfer_pb2

from tests.wire.conftest import Serve
from tests.wire.model import LARGE, SMALL, Model, Tensor
from tests.wire.oracle import Oracle
from tests.wire.pipeline import Pipeline
from tests.wire.refusals import refused
from tests.wire.serving import Serving
from tests.wire.test_races import WIDE, Turn, complete, read_to_the_end
from tests.wire.worker import RawWorker, all_of

BOTH_SIZES = pytest.mark.parametrize("model", [SMALL, LARGE], ids=["whole", "chunked"])
COMPACT = {"state_type": "bfloat16"}


async def trained(serving: Serving, oracle: Oracle, workers: list[RawWorker], order: list[int], seed: int = 0) -> None:
    """Commits in the given order of workers; every verdict and every reply must be the oracle's."""
    for number, index in enumerate(order):
        worker = workers[index]
        delta = worker.delta(seed + number)
        outcome = await worker.commit(delta)
        staleness, statistics = oracle.commit(worker.name, delta.parameters)
        assert outcome.verdict.staleness == staleness
        assert outcome.verdict.statistics.drift_norm == pytest.approx(statistics.drift_norm, rel=1e-5)
        assert outcome.reply.version == outcome.verdict.version
        assert outcome.reply.values.rest == delta.rest
        np.testing.assert_array_equal(outcome.reply.values.parameters, oracle.parameters)
    await serving.until_idle()


async def begun(serving: Serving, count: int, model: Model) -> tuple[Oracle, list[RawWorker]]:
    """The order of first pulls decides on random bits, so they come one by one."""
    workers = await serving.training(1, model)
    oracle = Oracle(await serving.values(model), **COMPACT)
    oracle.pull(workers[0].name)
    for _ in range(1, count):
        workers += await serving.training(1, model)
        oracle.pull(workers[-1].name)
    return oracle, workers


@pytest.mark.usefixtures("each_transport")
@BOTH_SIZES
async def test_interleaved_workers_get_the_rules_result_bit_for_bit(serve: Serve, model: Model) -> None:
    serving = await serve(**COMPACT)
    oracle, workers = await begun(serving, 3, model)
    await trained(serving, oracle, workers, [0, 1, 2, 2, 1, 0, 0, 0, 1, 2, 0, 1])
    pulled = await workers[2].pull()
    oracle.pull(workers[2].name)
    np.testing.assert_array_equal(pulled.values.parameters, oracle.parameters)
    await trained(serving, oracle, workers, [2, 0, 1, 2], seed=50)
    np.testing.assert_array_equal((await serving.values(model)).parameters, oracle.parameters)


@pytest.mark.usefixtures("each_transport")
async def test_one_buffer_serves_workers_in_turn_bit_for_bit(serve: Serve) -> None:
    """A reply that is being read is no upload: it does not count as the worker's next commit."""
    serving = await serve(**COMPACT, staging_buffers=1, order="round-robin", min_workers=4)
    workers = await serving.training(4, LARGE)
    oracle = Oracle(await serving.values(LARGE), **COMPACT)
    for worker in workers:
        oracle.pull(worker.name)

    async def steps(number: int) -> None:
        for step in range(5):
            await workers[number].commit(workers[number].delta(10 * number + step))

    await all_of(*map(steps, range(4)))
    for step in range(5):
        for number, worker in enumerate(workers):
            oracle.commit(worker.name, worker.delta(10 * number + step).parameters)
    np.testing.assert_array_equal((await serving.values(LARGE)).parameters, oracle.parameters)


@BOTH_SIZES
async def test_an_overlapping_workers_drift_is_from_the_base_of_its_gradient(serve: Serve, model: Model) -> None:
    compact, exact = await serve(**COMPACT), await serve()
    runs = []
    for serving in (compact, exact):
        pipelines = [Pipeline(worker) for worker in await serving.training(2, model, overlap=True)]
        drifts = []
        for seed, number in enumerate([0, 0, 1, 0, 1, 1, 1, 0, 0, 1, 0, 1]):
            outcome = await pipelines[number].commit(pipelines[number].worker.delta(seed))
            drifts.append(outcome.verdict.statistics.drift_norm)
            np.testing.assert_array_equal(outcome.reply.values.parameters, (await serving.values(model)).parameters)
        runs.append(drifts)
    assert min(runs[1][2:]) > 0
    assert runs[0] == pytest.approx(runs[1], rel=0.02)


@pytest.mark.usefixtures("each_transport")
async def test_an_unread_reply_keeps_its_buffer_until_others_have_waited_for_it(serve: Serve) -> None:
    serving = await serve(**COMPACT, staging_buffers=1, stall_timeout=0.5)
    worker, other = await serving.training(2, WIDE, reads_ahead=False)
    stream = worker.commit_stream()
    await stream.send_commit(worker.prepare(worker.delta(1)))
    await serving.until(lambda status: status.commits == 1)
    expected = bytes((await serving.read(WIDE)).payload)
    assert (await serving.status()).queue.staging_buffers_in_use == 1
    assert (await other.commit(other.delta(2))).verdict.version.clock == 3
    await read_to_the_end(stream, expected, clock=2, reason="STALLED")
    repeat = await worker.commit_stream().outcome_of_repeat(worker.prepare(worker.delta(1)))
    assert repeat.verdict.duplicate
    assert repeat.verdict.version.clock == 2
    assert repeat.reply.clock == 3
    worker.sequence = 1
    await serving.next_commit_works(worker)


@pytest.mark.usefixtures("each_transport")
@pytest.mark.parametrize("asks", ["to pull", "again", "to commit"])
async def test_a_worker_that_did_not_read_its_reply_gets_the_buffer_back(serve: Serve, asks: str) -> None:
    serving = await serve(**COMPACT, staging_buffers=1)
    worker, other = await serving.training(2, WIDE, reads_ahead=False)
    stream = worker.commit_stream()
    await stream.send_commit(worker.prepare(worker.delta(1)))
    await serving.until(lambda status: status.commits == 1)
    expected = bytes((await serving.read(WIDE)).payload)
    worker.sequence = 1
    if asks == "to pull":
        assert bytes((await worker.pull()).payload) == expected
    elif asks == "again":
        repeat = await worker.commit_stream().outcome_of_repeat(worker.prepare(worker.delta(1), sequence=1))
        assert bytes(repeat.reply.payload) == expected
    else:
        base = transfer_pb2.Version(incarnation=worker.version.incarnation, clock=2)
        commit = worker.prepare(worker.delta(2), base_version=base)
        assert (await worker.commit_on_new_stream(commit)).verdict.version.clock == 3
    await other.commit(other.delta(2))
    await read_to_the_end(stream, expected, clock=2)
    await serving.next_commit_works(worker)


@pytest.mark.usefixtures("each_transport")
async def test_a_caller_that_leaves_leaves_its_buffer(serve: Serve) -> None:
    serving = await serve(**COMPACT, order="round-robin", min_workers=2)
    first, second = await serving.training(2, LARGE)
    turn = await Turn.take(first)
    commit = second.prepare(second.delta(1))
    stream = await complete(serving, second, commit)
    stream.cancel()
    await turn.use()
    await serving.until(lambda status: status.commits == 2)
    await serving.until_idle()
    outcome = await second.commit_stream().outcome_of_repeat(commit)
    assert outcome.verdict.duplicate
    np.testing.assert_array_equal(outcome.reply.values.parameters, (await serving.values(LARGE)).parameters)


async def test_a_torn_reply_goes_on_while_theta_is_its_version(serve: Serve) -> None:
    serving = await serve(**COMPACT, chunk_bytes=40_000)
    worker, other = await serving.training(2, LARGE)
    replies = []
    for seed in (1, 2):
        stream = worker.commit_stream()
        await stream.send_commit(worker.prepare(worker.delta(seed)))
        replies.append((await stream.outcome(stop_after=2)).reply)
        if seed == 1:
            whole = await worker.resume(replies[0])
            assert bytes(whole.payload) == bytes((await serving.read(LARGE)).payload)
    await other.commit(other.delta(3))
    await refused(worker.resume(replies[1]), "STALE_BASE")
    assert (await worker.pull()).clock == 4
    await serving.next_commit_works(worker)


async def test_an_expired_worker_is_forgotten_and_comes_back_with_a_moment_of_0(serve: Serve) -> None:
    serving = await serve(**COMPACT, session_timeout=1.0)
    oracle, (ada, bob) = await begun(serving, 2, SMALL)
    await trained(serving, oracle, [ada, bob], [0, 1, 0])

    await bob.close()  # an open stream would keep the session
    await serving.until(lambda status: status.workers[1].state == status_pb2.WORKER_STATE_EXPIRED)
    oracle.leave(bob.name)
    await trained(serving, oracle, [ada], [0, 0], seed=20)
    bob = serving.adopt(bob.twin(bob.session_id))
    await bob.join()
    await bob.pull()
    oracle.pull(bob.name)
    await trained(serving, oracle, [ada, bob], [1, 0, 1, 1, 0], seed=30)


@pytest.mark.parametrize("durability", ["interval", "commit"])
async def test_a_run_goes_on_after_a_restart_also_with_the_other_state_type(
    serve: Serve, tmp_path: Path, durability: str
) -> None:
    serving = await serve(**COMPACT, data_dir=tmp_path, durability=durability)
    oracle, workers = await begun(serving, 2, SMALL)
    await trained(serving, oracle, workers, [0, 1, 0, 0, 1])
    for state_type in ("bfloat16", "float32"):
        expected = await serving.values()
        await serving.stop()
        serving = await serve(state_type=state_type, data_dir=tmp_path, durability=durability, resume=True)
        (worker,) = await serving.training(1)
        np.testing.assert_array_equal(worker.held.values.parameters, expected.parameters)
        await worker.commit(worker.delta(9))


async def test_a_worker_is_promised_half_the_bytes_and_the_run_one_vector(serve: Serve) -> None:
    vector, reserved = 4 * LARGE.parameter_count, {}
    # Each version of a BUFFER is an object of its own.
    rest = LARGE.byte_count() - vector + 64 * len(LARGE.of_kind("buffer"))
    for state_type in ("float32", "bfloat16"):
        serving = await serve(state_type=state_type)
        reserved[state_type] = []
        for overlap in (False, True, False):
            await serving.joined(LARGE, overlap=overlap)
            reserved[state_type].append(serving.server.sessions.memory.reserved)
    first, second, third = reserved["bfloat16"]
    assert third - second == vector + rest
    assert second - first == 3 * vector // 2 + 2 * rest
    assert first == reserved["float32"][0]  # the reference is as large as half a worker


async def test_bytes_on_the_server_are_those_promised(serve: Serve) -> None:
    serving = await serve(**COMPACT)
    workers = await serving.training(2, Model((Tensor("weight", (1_001,)),)))
    await all_of(*(worker.commit(worker.delta(1)) for worker in workers))
    layout = serving.server.central.layout
    assert layout is not None
    for session in serving.server.sessions.live():
        assert session.held is not None
        held = session.held.newest.parameters.nbytes + sum(one.nbytes for one in session.held.moments)
        assert held == serving.server.sessions.memory.worker_bytes(layout) == 4 * 1_001


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rule": "downpour"}, "--state-type bfloat16: rule 'downpour' .* choose state type float32"),
        ({"precondition": "rms"}, "--state-type bfloat16: rule 'gem' with precondition rms keeps float32 only"),
        ({"record": "run.trace"}, "--state-type bfloat16 excludes --record: leave out one"),
        ({"shared_memory_socket": "/tmp/s"}, "--state-type bfloat16 excludes --shared-memory-socket: leave out one"),
    ],
)
def test_what_needs_float32_state_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ServerSettings(**COMPACT, **settings)
