"""WAITING -> TRAINING -> FINISHED: what starts a run, what each budget ends, eta on the way, and whose turn it is."""

import asyncio

import pytest
from gemps.v1 import operations_pb2, run_pb2, status_pb2

from tests.wire.conftest import Serve
from tests.wire.model import LARGE, SMALL
from tests.wire.refusals import refused
from tests.wire.serving import Serving
from tests.wire.worker import RawWorker, all_of

WAITING, TRAINING, FINISHED = run_pb2.RUN_STATE_WAITING, run_pb2.RUN_STATE_TRAINING, run_pb2.RUN_STATE_FINISHED


# -- waiting -----------------------------------------------------------------------------------------------------------


async def test_run_waits_for_parameters(serving: Serving) -> None:
    assert (await serving.status()).run_state == WAITING
    worker = await serving.joined()
    assert worker.membership.run_state == WAITING
    assert (await worker.heartbeat()).run_state == WAITING
    await worker.initialize()
    assert (await worker.heartbeat()).run_state == TRAINING


async def test_run_waits_for_its_workers(serve: Serve) -> None:
    serving = await serve(min_workers=3)
    first, second = await serving.training(2)
    assert (await first.heartbeat()).run_state == WAITING
    third = await serving.joined()
    assert third.membership.run_state == TRAINING
    assert (await second.heartbeat()).run_state == TRAINING


@pytest.mark.parametrize("model", [SMALL, LARGE], ids=["whole", "chunked"])
async def test_commit_waits_until_enough_workers_have_joined(serve: Serve, model: object) -> None:
    """Commits wait; nothing is wrong."""
    serving = await serve(min_workers=2)
    (worker,) = await serving.training(1, model)
    committing = asyncio.create_task(worker.commit(worker.delta(1)))
    await serving.until(lambda status: status.queue.waiting + status.queue.length == 1)
    assert (await serving.status()).commits == 0
    assert not committing.done()
    await serving.joined(model)
    outcome = await committing
    assert outcome.verdict.version.clock == 2
    assert outcome.verdict.run_state == TRAINING


async def test_pull_is_served_while_the_run_waits(serve: Serve) -> None:
    serving = await serve(min_workers=2)
    worker = await serving.joined()
    await worker.initialize()
    assert (await worker.pull()).clock == 1


async def test_run_goes_on_when_a_worker_leaves(serve: Serve) -> None:
    serving = await serve(min_workers=2)
    first, second = await serving.training(2)
    await second.leave()
    assert (await first.commit(first.delta(1))).verdict.run_state == TRAINING


# -- budgets -----------------------------------------------------------------------------------------------------------


async def commit_to_the_end(worker: RawWorker, most: int = 50) -> int:
    """Commits until the verdict says FINISHED; how many were applied."""
    for number in range(1, most + 1):
        if (await worker.commit(worker.delta(number))).verdict.run_state == FINISHED:
            return number
    raise AssertionError("the budget never ended")


async def test_budget_of_commits_ends_the_run_for_all(serve: Serve) -> None:
    serving = await serve(commits=5)
    first, second = await serving.training(2)
    for seed in range(2):
        assert (await first.commit(first.delta(seed))).verdict.run_state == TRAINING
        assert (await second.commit(second.delta(seed))).verdict.run_state == TRAINING
    assert (await first.commit(first.delta(9))).verdict.run_state == FINISHED
    await refused(second.commit(second.delta(9)), "RUN_FINISHED")
    assert (await second.heartbeat()).run_state == FINISHED
    status = await serving.status()
    assert (status.run_state, status.commits, status.version.clock) == (FINISHED, 5, 6)


async def test_budget_of_steps_ends_each_worker_by_itself(serve: Serve) -> None:
    serving = await serve(steps=3)
    first, second = await serving.training(2)
    assert await commit_to_the_end(first) == 3
    assert (await first.heartbeat()).run_state == FINISHED
    await refused(first.commit_on_new_stream(first.prepare(first.delta(9))), "RUN_FINISHED")
    assert (await second.heartbeat()).run_state == TRAINING
    assert (await serving.status()).run_state == TRAINING
    assert await commit_to_the_end(second) == 3
    assert (await serving.status()).run_state == FINISHED


async def test_budget_of_epochs_counts_each_workers_own_steps(serve: Serve) -> None:
    serving = await serve(epochs=1.5)
    short = await serving.joined(steps_per_epoch=2)
    long = await serving.joined(steps_per_epoch=5)
    await short.initialize()
    await all_of(short.pull(), long.pull())
    assert await commit_to_the_end(short) == 3
    assert await commit_to_the_end(long) == 8  # 7.5 steps, rounded up
    assert (await serving.status()).run_state == FINISHED


async def test_whichever_budget_is_spent_first_ends_the_run(serve: Serve) -> None:
    serving = await serve(steps=10, commits=4)
    (worker,) = await serving.training(1)
    assert await commit_to_the_end(worker) == 4


async def test_budget_of_steps_is_the_names_not_the_sessions(serve: Serve) -> None:
    """A worker that comes back with a new session does not get its steps again."""
    serving = await serve(steps=3)
    older, other = await serving.training(2)
    await older.commit(older.delta(1))
    await older.commit(older.delta(2))
    newer = serving.adopt(older.twin())
    await newer.join()
    await newer.pull()
    assert await commit_to_the_end(newer) == 1
    assert (await serving.status()).workers[0].commits == 3
    assert (await other.heartbeat()).run_state == TRAINING


async def test_run_without_a_budget_goes_on(serving: Serving) -> None:
    (worker,) = await serving.training(1)
    for seed in range(20):
        assert (await worker.commit(worker.delta(seed))).verdict.run_state == TRAINING


async def test_finished_run_still_answers(serve: Serve) -> None:
    """Join and Pull work in FINISHED and say so; workers then exit 0."""
    serving = await serve(commits=1)
    (worker,) = await serving.training(1)
    last = await worker.commit(worker.delta(1))
    latecomer = await serving.joined()
    assert latecomer.membership.run_state == FINISHED
    assert latecomer.membership.has_parameters
    assert bytes((await latecomer.pull()).payload) == bytes(last.reply.payload)
    assert (await worker.leave()).run_state == FINISHED
    assert (await latecomer.leave()).run_state == FINISHED


async def test_commits_under_way_are_told_when_the_run_is_finished(serve: Serve) -> None:
    """Uploading, or waiting for a buffer: neither is complete, so neither counts."""
    serving = await serve(commits=1, staging_buffers=2)
    first, second, third = await serving.training(3, LARGE)
    uploading = second.commit_stream()
    await uploading.send_opening(second.prepare(second.delta(1)))
    finishing = first.commit_stream()
    commit = first.prepare(first.delta(1))
    await finishing.send_opening(commit)
    waiting = third.commit_stream()
    await waiting.send(third.prepare(third.delta(1)).opening())
    await serving.until_waiting(1)
    await finishing.send_rest(commit)
    assert (await finishing.outcome()).verdict.run_state == FINISHED
    await waiting.refused("RUN_FINISHED")
    await uploading.send_rest(second.prepare(second.delta(1)))
    await uploading.refused("RUN_FINISHED")
    assert (await serving.status()).commits == 1
    await serving.until_idle()


async def test_operator_can_finish_the_run(serving: Serving) -> None:
    (worker,) = await serving.training(1)
    await worker.commit(worker.delta(1))
    request = operations_pb2.ControlRequest(action=operations_pb2.CONTROL_ACTION_FINISH, reason="enough")
    answer = await serving.stub.Control(request)
    assert answer.run_state == FINISHED
    assert answer.version == worker.version
    await refused(worker.commit(worker.delta(2)), "RUN_FINISHED")
    assert (await serving.stub.Control(request)).run_state == FINISHED


async def test_operator_who_finishes_a_run_keeps_what_is_complete(serve: Serve) -> None:
    serving = await serve(order="round-robin", min_workers=2)
    first, second = await serving.training(2, LARGE)
    held = first.commit_stream()
    commit = first.prepare(first.delta(1))
    await held.send_opening(commit)
    complete = second.commit_stream()
    await complete.send_commit(second.prepare(second.delta(1)))
    await serving.until_queued(1)
    await serving.stub.Control(operations_pb2.ControlRequest(action=operations_pb2.CONTROL_ACTION_FINISH))
    await held.send_rest(commit)
    await held.refused("RUN_FINISHED")
    assert (await complete.outcome()).verdict.version.clock == 2
    await serving.until_idle()


# -- eta ---------------------------------------------------------------------------------------------------------------


async def etas(serve: Serve, commits: int, **settings: object) -> list[float]:
    """next_eta as Join tells it, and then each verdict."""
    serving = await serve(**settings)
    (worker,) = await serving.training(1)
    told = [worker.membership.next_eta]
    for seed in range(commits):
        outcome = await worker.commit(worker.delta(seed))
        told.append(outcome.verdict.next_eta)
        assert (await worker.heartbeat()).next_eta == (await serving.status()).next_eta == told[-1]
    return told


async def test_constant_eta_is_constant(serve: Serve) -> None:
    assert await etas(serve, 3, eta=0.1) == [0.1] * 4


async def test_step_schedule_multiplies_eta_again_and_again(serve: Serve) -> None:
    told = await etas(serve, 6, eta=0.8, eta_schedule="step:2:0.5")
    assert told == pytest.approx([0.8, 0.8, 0.4, 0.4, 0.2, 0.2, 0.1])


async def test_cosine_schedule_falls_from_eta_to_its_minimum_and_stays(serve: Serve) -> None:
    told = await etas(serve, 6, eta=0.9, eta_schedule="cosine:4:0.1")
    assert told == pytest.approx([0.9, 0.7828427, 0.5, 0.2171573, 0.1, 0.1, 0.1])


async def test_cosine_schedule_ends_with_the_steps_of_all_workers(serve: Serve) -> None:
    serving = await serve(steps=2, eta=1.0, eta_schedule="cosine", min_workers=1)
    workers = await serving.training(3)
    told = [(await one.commit(one.delta(seed))).verdict.next_eta for seed in (1, 2) for one in workers]
    assert told == pytest.approx([0.9330127, 0.75, 0.5, 0.25, 0.0669873, 0.0])


async def test_warm_up_rises_linearly_to_eta(serve: Serve) -> None:
    told = await etas(serve, 5, eta=0.4, eta_schedule="warmup:4")
    assert told == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])


async def test_eta_follows_the_clock_of_all_workers(serve: Serve) -> None:
    serving = await serve(eta=0.8, eta_schedule="step:2:0.5")
    first, second = await serving.training(2)
    await first.commit(first.delta(1))
    assert (await second.commit(second.delta(1))).verdict.next_eta == pytest.approx(0.4)
    assert (await first.heartbeat()).next_eta == pytest.approx(0.4)


# -- turns -------------------------------------------------------------------------------------------------------------


async def test_round_robin_serves_by_rank_whoever_asks_first(serve: Serve) -> None:
    serving = await serve(order="round-robin", min_workers=3, staging_buffers=2)
    workers = await serving.training(3)
    for _ in range(3):
        outcomes = await all_of(*(worker.commit(worker.delta(1)) for worker in reversed(workers)))
        clocks = [outcome.verdict.version.clock for outcome in reversed(outcomes)]
        assert clocks == [clocks[0], clocks[0] + 1, clocks[0] + 2]


async def test_round_robin_has_the_same_result_whoever_asks_first(serve: Serve) -> None:
    """With a fixed order the run is reproducible, bit for bit."""
    results = []
    for backwards in (False, True):
        serving = await serve(order="round-robin", min_workers=4, staging_buffers=2)
        workers = await serving.training(4, LARGE)
        for seed in range(3):
            asking = list(reversed(workers)) if backwards else workers
            await all_of(*(worker.commit(worker.delta(seed + 10 * workers.index(worker))) for worker in asking))
        results.append((await serving.read(LARGE)).payload)
    assert results[0] == results[1]


async def test_round_robin_starts_when_enough_workers_have_joined(serve: Serve) -> None:
    serving = await serve(order="round-robin", min_workers=2)
    first = await serving.joined()
    await first.initialize()
    pulling = asyncio.create_task(first.pull())
    second = await serving.joined()
    await all_of(pulling, second.pull())
    outcomes = await all_of(second.commit(second.delta(1)), first.commit(first.delta(1)))
    assert [outcome.verdict.version.clock for outcome in outcomes] == [3, 2]


@pytest.mark.parametrize("ending", ["leave", "expire", "supersede"])
async def test_sessions_end_passes_its_turn_on(serve: Serve, ending: str) -> None:
    serving = await serve(order="round-robin", min_workers=3, session_timeout=0.5 if ending == "expire" else 120)
    first, second, third = await serving.training(3)
    committing = asyncio.create_task(third.commit(third.delta(1)))
    await all_of(first.commit(first.delta(1)))
    if ending == "leave":
        await second.leave()
    elif ending == "supersede":
        newer = serving.adopt(second.twin())
        await newer.join()
        await newer.leave()
    else:
        # Its neighbours keep on living by their calls: one commits, the other has said all it had to.
        await serving.until(lambda status: status.workers[1].state == status_pb2.WORKER_STATE_EXPIRED)
    assert (await committing).verdict.version.clock == 3


async def test_worker_that_spent_its_budget_passes_its_turn_on(serve: Serve) -> None:
    serving = await serve(order="round-robin", min_workers=2, epochs=1.0)
    short = await serving.joined(steps_per_epoch=1)
    long = await serving.joined(steps_per_epoch=3)
    await short.initialize()
    await all_of(short.pull(), long.pull())
    committing = asyncio.create_task(commit_to_the_end(long))
    assert (await short.commit(short.delta(1))).verdict.run_state == FINISHED
    assert await committing == 3


async def test_torn_upload_in_its_turn_stops_nobody_for_ever(serve: Serve) -> None:
    """Its turn comes; it dies without leaving; when it has expired the others go on."""
    serving = await serve(order="round-robin", min_workers=2, session_timeout=0.5)
    first, second = await serving.training(2, LARGE)
    stream = first.commit_stream()
    await stream.send_opening(first.prepare(first.delta(1)))
    await first.close()
    assert (await second.commit(second.delta(1))).verdict.version.clock == 2
