"""What whoever started the workers tells the server: one of them is gone, or all of them have ended."""

import json
from pathlib import Path

import pytest
from gemps.v1 import operations_pb2, run_pb2, status_pb2

from tests.wire.conftest import Serve
from tests.wire.refusals import refused
from tests.wire.serving import Serving

TRAINING, FINISHED = run_pb2.RUN_STATE_TRAINING, run_pb2.RUN_STATE_FINISHED


def end_session(worker: str, *, comes_back: bool = False) -> operations_pb2.ControlRequest:
    action = operations_pb2.CONTROL_ACTION_END_SESSION
    return operations_pb2.ControlRequest(
        action=action, worker=worker, comes_back=comes_back, reason="killed by SIGKILL"
    )


ALL_ENDED = operations_pb2.ControlRequest(
    action=operations_pb2.CONTROL_ACTION_FINISH, reason="every worker has ended", resumable=True
)


async def test_a_lost_worker_is_gone_at_once_and_joins_again_if_it_lives_after_all(serving: Serving) -> None:
    lost, other = await serving.training(2)
    await lost.commit(lost.delta(1))
    assert (await serving.stub.Control(end_session(lost.name))).session_ended
    states = {worker.name: (worker.state, worker.condition) for worker in (await serving.status()).workers}
    assert states[lost.name] == (status_pb2.WORKER_STATE_EXPIRED, status_pb2.WORKER_CONDITION_GONE)
    assert (await other.commit(other.delta(1))).verdict.run_state == TRAINING
    await refused(lost.commit(lost.delta(2)), "EXPIRED_SESSION")
    await lost.join()
    await lost.pull()
    assert (await lost.commit(lost.delta(3))).verdict.run_state == TRAINING
    assert lost.membership.rank == 0


async def test_in_turns_the_others_do_not_wait_for_a_lost_worker(serve: Serve) -> None:
    serving = await serve(order="round-robin", min_workers=2)
    first, second = await serving.training(2)
    await first.commit(first.delta(1))
    await second.commit(second.delta(1))
    await serving.stub.Control(end_session(first.name))
    for seed in range(3):
        await second.commit(second.delta(seed))


@pytest.mark.parametrize("name", ["nobody", "worker-0"])
async def test_a_worker_without_a_session_is_no_error(serving: Serving, name: str) -> None:
    (worker,) = await serving.training(1)
    await worker.leave()
    assert not (await serving.stub.Control(end_session(name))).session_ended
    states = [one.state for one in (await serving.status()).workers]
    assert states == [status_pb2.WORKER_STATE_LEFT]


async def test_a_session_is_not_ended_without_a_name(serving: Serving) -> None:
    (worker,) = await serving.training(1)
    async with serving.unchanged(worker):
        await refused(serving.stub.Control(end_session("")), "MALFORMED")


async def test_a_run_does_not_finish_without_a_lost_worker_that_is_started_again(serve: Serve) -> None:
    serving = await serve(steps=2, min_workers=2)
    lost, other = await serving.training(2)
    await serving.stub.Control(end_session(lost.name, comes_back=True))
    for seed in range(2):
        await other.commit(other.delta(seed))
    await other.leave()
    assert (await serving.status()).run_state == TRAINING
    again = await serving.joined(name=lost.name)
    await again.pull()
    for seed in range(2):
        await again.commit(again.delta(seed))
    assert (await serving.status()).run_state == FINISHED


async def test_a_run_finishes_without_a_lost_worker_that_is_given_up(serve: Serve) -> None:
    serving = await serve(steps=1, min_workers=2)
    lost, other = await serving.training(2)
    await serving.stub.Control(end_session(lost.name, comes_back=True))
    await other.commit(other.delta(1))
    await other.leave()
    await serving.stub.Control(end_session(lost.name))
    assert (await serving.status()).run_state == FINISHED


async def test_a_run_finishes_without_a_lost_worker_that_stays_away(serve: Serve) -> None:
    serving = await serve(steps=1, min_workers=2, session_timeout=0.5)
    lost, other = await serving.training(2)
    await serving.stub.Control(end_session(lost.name, comes_back=True))
    await other.commit(other.delta(1))
    await other.leave()
    await serving.until(lambda status: status.run_state == FINISHED)


async def test_a_worker_that_is_started_again_beside_its_old_session_finds_the_run_unfinished(serve: Serve) -> None:
    serving = await serve(steps=2, min_workers=2)
    killed, other = await serving.training(2)
    for seed in range(2):
        await other.commit(other.delta(seed))
    await other.leave()
    again = await serving.joined(name=killed.name)
    assert again.membership.run_state == TRAINING


async def test_a_run_whose_workers_have_all_ended_is_finished_and_trains_on_when_it_is_resumed(
    serve: Serve, tmp_path: Path
) -> None:
    serving = await serve(data_dir=tmp_path)
    (worker,) = await serving.training(1)
    await worker.commit(worker.delta(1))
    await worker.leave()
    assert (await serving.stub.Control(ALL_ENDED)).run_state == FINISHED
    assert (await serving.status()).run_state == FINISHED
    await serving.stop()
    state = json.loads((tmp_path / "latest" / "state.json").read_text(encoding="utf-8"))
    assert state["finished_because"] is None
    serving = await serve(data_dir=tmp_path, resume=True)
    (back,) = await serving.training(1)
    assert (await back.commit(back.delta(2))).verdict.version.clock == 3


@pytest.mark.parametrize("resumable", [False, True])
async def test_a_run_that_is_finished_for_good_stays_so(serve: Serve, tmp_path: Path, resumable: bool) -> None:
    serving = await serve(data_dir=tmp_path, durability="commit", commits=1)
    (worker,) = await serving.training(1)
    await worker.commit(worker.delta(1))
    request = operations_pb2.ControlRequest(action=operations_pb2.CONTROL_ACTION_FINISH, resumable=resumable)
    await serving.stub.Control(request)
    await serving.stop()
    serving = await serve(data_dir=tmp_path, durability="commit", commits=1, resume=True)
    assert (await serving.status()).run_state == FINISHED


async def test_a_worker_that_left_with_an_error_and_is_started_again_is_waited_for(serve: Serve) -> None:
    serving = await serve(steps=1, min_workers=2)
    failed, other = await serving.training(2)
    await failed.leave()
    await serving.stub.Control(end_session(failed.name, comes_back=True))
    await other.commit(other.delta(1))
    await other.leave()
    assert (await serving.status()).run_state == TRAINING
    again = await serving.joined(name=failed.name)
    await again.pull()
    await again.commit(again.delta(1))
    assert (await serving.status()).run_state == FINISHED
