"""One worker's deltas that are much larger than the others': they are scaled down, and at last count as 0."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from gemps.v1 import operations_pb2, run_pb2

from gem_core.aligned import aligned_copy
from gem_core.norm import sampled_norm
from gem_trace import replay
from tests.wire.conftest import Serve
from tests.wire.model import DELTA_WIRE_TYPES, LARGE, SMALL, Model, Values
from tests.wire.refusals import refused
from tests.wire.serving import Serving
from tests.wire.sharing import Sharing, needs_shared_memory
from tests.wire.worker import RawWorker

# Of each worker, before a delta is too large.
ROUNDS = 8
# Too large deltas that begin a quarantine.
HABIT = 20


async def usual(workers: list[RawWorker], rounds: int = ROUNDS) -> None:
    for number in range(rounds):
        for index, worker in enumerate(workers):
            await worker.commit(worker.delta(100 * index + number))


def times(factor: float, delta: Values) -> Values:
    return Values(delta.parameters * np.float32(factor), delta.rest)


async def moved(serving: Serving, worker: RawWorker, delta: Values, **fields: object) -> Values:
    """What a commit by rule downpour added to the parameters, and the BUFFERs after it."""
    before = await serving.values(worker.model)
    after = (await worker.commit(delta, **fields)).reply.values
    return Values(after.parameters - before.parameters, after.rest)


@pytest.mark.usefixtures("each_transport")
@pytest.mark.parametrize("model", [SMALL, LARGE], ids=["whole", "chunked"])
@pytest.mark.parametrize("wire_type", DELTA_WIRE_TYPES)
@pytest.mark.parametrize("scale", [1.0, -500.0])
async def test_a_delta_that_is_too_large_is_scaled_down_to_the_others_median(
    serve: Serve, model: Model, wire_type: int, scale: float
) -> None:
    """Whatever brought it: the chunks, the wire type, and the factor in the header do not matter."""
    serving = await serve(rule="downpour")
    workers = await serving.training(3, model, delta_wire_types=[wire_type])
    await usual(workers)
    delta = workers[0].delta(1)
    fields = {} if scale == 1 else {"scale": scale}
    found = (await moved(serving, workers[0], times(500.0 if scale == 1 else 1.0, delta), **fields)).parameters
    assert np.linalg.norm(found) == pytest.approx(np.linalg.norm(delta.parameters), rel=0.1)
    cosine = found @ delta.parameters / np.linalg.norm(found) / np.linalg.norm(delta.parameters)
    assert cosine * np.sign(scale) > 0.97
    status = await serving.status()
    assert [worker.scaled for worker in status.workers] == [1, 0, 0]
    assert not any(worker.quarantined for worker in status.workers)


@needs_shared_memory
async def test_shared_memory_gives_the_parameters_that_the_stream_gives(serve: Serve, tmp_path: Path) -> None:
    ends = []
    for way in ("shared memory", "stream"):
        serving = await serve(shared_memory_socket=tmp_path / way)
        workers = await serving.training(3, LARGE)
        await usual(workers[1:])
        wild = times(1000.0, workers[0].delta(1))
        shared = await Sharing.of(workers[0])
        await workers[0].pull()
        await (shared if way == "shared memory" else workers[0]).commit(wild)
        shared.close()
        assert (await serving.status()).workers[0].scaled == 1
        ends.append((await serving.values(LARGE)).parameters.tobytes())
    assert ends[0] == ends[1]


async def test_the_log_recovers_what_was_applied(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(data_dir=tmp_path / "run", durability="commit", checkpoint_interval=0)
    workers = await serving.training(3)
    await usual(workers)
    for seed in range(HABIT + 3):  # the last ones in quarantine
        await workers[0].commit(times(1000.0, workers[0].delta(seed)))
        await workers[1].commit(workers[1].delta(seed))
    assert (await serving.status()).workers[0].quarantined
    expected = bytes((await serving.read(SMALL)).payload)
    shutil.copytree(tmp_path / "run", tmp_path / "copy", symlinks=True)  # as a kill leaves it
    resumed = await serve(data_dir=tmp_path / "copy", durability="commit", resume=True)
    assert bytes((await resumed.read(SMALL)).payload) == expected


async def test_a_trace_has_what_was_applied(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    serving = await serve(record=path)
    workers = await serving.training(3)
    await usual(workers)
    for seed in range(HABIT + 3):
        await workers[0].commit(times(1000.0, workers[0].delta(seed)))
    expected = (await serving.values()).parameters
    await serving.stop()
    found = replay(path)
    assert found.parameters.tobytes() == expected.tobytes()


async def test_a_quarantined_worker_changes_nothing_until_an_operator_ends_that(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    serving = await serve(rule="downpour")
    workers = await serving.training(3)
    await usual(workers)
    wild = workers[0]
    for seed in range(HABIT):
        await wild.commit(times(1000.0, wild.delta(seed)))
    assert f"worker {wild.name} is quarantined" in caplog.text
    before, commits = await serving.values(), (await serving.status()).commits

    for rejoins in (False, True):
        if rejoins:
            await wild.leave()
            wild = await serving.joined(SMALL, wild.name)
            await wild.pull()
        reply = (await wild.commit(wild.delta(1))).reply.values
        assert reply.parameters.tobytes() == before.parameters.tobytes()
        assert reply.rest == before.rest
    status = await serving.status()
    assert status.commits == commits + 2
    assert [worker.quarantined for worker in status.workers] == [True, False, False]
    assert status.workers[0].scaled == HABIT + 2
    assert await problems_of(serving) == [("quarantined", [wild.name])]

    assert not await end_quarantine(serving, workers[1].name)
    assert not await end_quarantine(serving, "nobody")
    assert await end_quarantine(serving, wild.name)
    assert f"worker {wild.name} is no longer quarantined: it was repaired" in caplog.text
    delta = wild.delta(1)
    np.testing.assert_allclose((await moved(serving, wild, delta)).parameters, delta.parameters, atol=1e-6)
    assert not await problems_of(serving)


async def problems_of(serving: Serving) -> list[tuple[str, list[str]]]:
    serving.server.problem_watch.look()
    return [(one.kind, [*one.workers]) for one in (await serving.status()).problems]


async def test_a_quarantined_worker_that_selects_buffers_gets_all_of_the_runs(serve: Serve) -> None:
    serving = await serve()
    workers = await serving.training(3)
    await usual(workers)
    for seed in range(HABIT):
        await workers[0].commit(times(1000.0, workers[0].delta(seed)))
    before = (await serving.values()).rest
    changed = Values(workers[0].delta(1).parameters, np.ones(5, np.float32).tobytes())  # running_mean
    outcome = await workers[0].commit_on_new_stream(workers[0].prepare(changed, selected=[0]))
    assert outcome.reply.values.rest == before
    assert (await serving.values()).rest == before


async def end_quarantine(serving: Serving, worker: str) -> bool:
    request = operations_pb2.ControlRequest(
        action=operations_pb2.CONTROL_ACTION_END_QUARANTINE, worker=worker, reason="it was repaired"
    )
    return bool((await serving.stub.Control(request)).quarantine_ended)


async def test_ending_a_quarantine_needs_a_name(serving: Serving) -> None:
    request = operations_pb2.ControlRequest(action=operations_pb2.CONTROL_ACTION_END_QUARANTINE)
    await refused(serving.stub.Control(request), "MALFORMED")


async def test_zero_switches_it_off(serve: Serve) -> None:
    serving = await serve(rule="downpour", delta_norm=0)
    workers = await serving.training(3)
    await usual(workers)
    delta = times(1000.0, workers[0].delta(1))
    found = (await moved(serving, workers[0], delta)).parameters
    assert sampled_norm(aligned_copy(found)) == pytest.approx(sampled_norm(aligned_copy(delta.parameters)), rel=1e-3)


async def test_a_worker_alone_is_not_bounded(serve: Serve) -> None:
    serving = await serve(rule="downpour")
    (worker,) = await serving.training(1)
    await usual([worker], 3 * ROUNDS)
    delta = times(1000.0, worker.delta(1))
    found = (await moved(serving, worker, delta)).parameters
    assert sampled_norm(aligned_copy(found)) == pytest.approx(sampled_norm(aligned_copy(delta.parameters)), rel=1e-3)


async def test_repeated_deltas_and_losses_that_are_not_finite_are_told(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    workers = await serving.training(3)
    for seed in range(HABIT + 1):
        await workers[0].commit(workers[0].delta(1), loss=1.0)
        await workers[1].commit(workers[1].delta(seed), loss=float("nan"))
        await workers[2].commit(workers[2].delta(seed), loss=1.0)
    status = await serving.status()
    assert status.run_state == run_pb2.RUN_STATE_TRAINING
    assert await problems_of(serving) == [
        ("same-deltas", [workers[0].name]),
        ("losses-not-finite", [workers[1].name]),
    ]
    assert caplog.text.count("the same deltas come again and again") == 1
