"""GetStatus, WatchStatus, health, reflection, and what evaluators and operators may say."""

import asyncio
import math
import sys
from pathlib import Path

import grpc
import numpy as np
import pytest
from gemps.v1 import history_pb2, operations_pb2, run_pb2, status_pb2, transfer_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.waiting import eventually_async
from tests.wire.calls import SERVICES, Stream
from tests.wire.conftest import Serve
from tests.wire.model import BFLOAT16, FLOAT32, INT4_BLOCK, LARGE, SMALL
from tests.wire.refusals import PATIENCE, refused
from tests.wire.serving import Serving
from tests.wire.sharing import Sharing, needs_shared_memory


async def test_status_before_anything_happened(serving: Serving) -> None:
    status = await serving.status()
    assert status.server_version
    assert status.version.incarnation > 0
    assert status.version.clock == 0
    assert status.run_state == run_pb2.RUN_STATE_WAITING
    assert (status.settings.rule, status.rule) == ("auto", "rule auto: the first worker decides")
    assert status.commits == status.parameter_count == status.run_seconds == 0
    assert not status.workers
    assert (status.queue.staging_buffers, status.queue.waiting_limit) == (4, 1024)
    assert status.memory.limit_bytes > status.memory.reserved_bytes
    assert status.memory.anonymous_bytes > 0
    assert (status.checkpoint.path, status.checkpoint.durability) == ("", "none")


async def test_status_of_a_run_in_training(serving: Serving) -> None:
    first, second = await serving.training(2)
    await first.commit(first.delta(1), loss=3.0, samples=10)
    outcome = await second.commit(second.delta(2), loss=1.0, samples=20)
    status = await serving.status()
    assert status.version == second.version
    assert status.run_state == run_pb2.RUN_STATE_TRAINING
    assert status.run_seconds > 0
    assert status.uptime_seconds >= status.run_seconds
    assert status.parameter_count == SMALL.parameter_count
    assert status.tensor_count == len(SMALL.tensors)
    assert status.layout_digest == SMALL.digest
    assert status.commits == 2
    assert status.commits_per_second > 0
    assert status.next_eta == outcome.verdict.next_eta
    assert status.loss == pytest.approx(2.0)
    assert status.staleness_mean == pytest.approx(0.5)
    assert 0 <= status.mean_pi <= 5
    assert status.jain_index == pytest.approx(1.0)
    assert status.queue.length == status.queue.staging_buffers_in_use == status.queue.waiting == 0
    assert status.memory.worker_bytes >= 2 * 4 * SMALL.parameter_count
    assert status.memory.reserved_bytes >= 2 * status.memory.worker_bytes


async def test_status_of_each_worker(serving: Serving) -> None:
    told = {"host_id": "h1", "agent": "rust/1", "device": "cuda:1", "host_name": "left", "engine": "slurm"}
    first = await serving.joined(name="ada", **told)
    second = await serving.joined(
        name="bob", host_id="h1", delta_wire_types=[INT4_BLOCK], parameter_wire_types=[BFLOAT16]
    )
    await first.initialize()
    await first.pull()
    await second.pull()
    for seed in range(3):
        outcome = await second.commit(second.delta(seed), loss=0.5, samples=7)
    statuses = (await serving.status()).workers
    assert [worker.name for worker in statuses] == ["ada", "bob"]
    ada, bob = statuses
    assert {field: getattr(ada, field) for field in told} == told
    assert (ada.rank, ada.host_rank) == (0, 0)
    assert (bob.rank, bob.host_rank) == (1, 1)
    assert (ada.state, bob.state) == (status_pb2.WORKER_STATE_JOINED, status_pb2.WORKER_STATE_TRAINING)
    assert (ada.commits, bob.commits, bob.samples, bob.loss) == (0, 3, 21, 0.5)
    assert not ada.HasField("loss")
    assert (bob.staleness_last, bob.staleness_mean) == (0, 0)
    assert bob.statistics == outcome.verdict.statistics
    assert bob.wait_max_seconds >= bob.wait_mean_seconds >= 0
    assert (ada.delta_wire_type, ada.parameter_wire_type) == (FLOAT32, FLOAT32)
    assert (bob.delta_wire_type, bob.parameter_wire_type) == (INT4_BLOCK, BFLOAT16)
    assert bob.bytes_received >= 3 * SMALL.byte_count(INT4_BLOCK)
    assert bob.bytes_sent >= 4 * SMALL.byte_count(BFLOAT16)
    assert bob.commits_per_second > 0
    assert ada.snapshot_version.clock == 1
    assert bob.snapshot_version == outcome.verdict.version


async def test_refused_and_repeated_commits_are_counted(serving: Serving) -> None:
    (worker,) = await serving.training(1)
    commit = worker.prepare(worker.delta(1)).repeated()
    await worker.commit_on_new_stream(commit)
    await worker.commit_on_new_stream(commit)
    wrong = worker.prepare(worker.delta(2))
    await serving.refuses(worker, wrong.with_footer(crc32c=wrong.footer.crc32c ^ 1), "CHECKSUM")
    status = (await serving.status()).workers[0]
    assert (status.duplicates, status.refused) == (1, 1)


async def test_what_became_of_each_worker(serve: Serve) -> None:
    serving = await serve(session_timeout=0.3, steps=1)
    left, expired, finished = await serving.training(3)
    await finished.commit(finished.delta(1))
    await left.leave()
    await expired.close()
    status = await serving.until(lambda s: s.workers[1].state == status_pb2.WORKER_STATE_EXPIRED)
    assert status.workers[0].state == status_pb2.WORKER_STATE_LEFT
    assert status.workers[2].state == status_pb2.WORKER_STATE_FINISHED
    newer = serving.adopt(left.twin())
    await newer.join()
    status = await serving.status()
    assert status.workers[0].state == status_pb2.WORKER_STATE_JOINED
    assert status.workers[0].sessions == 2


async def test_worker_is_silent_between_two_commits_though_its_stream_is_open(serving: Serving) -> None:
    """Such a worker may compute, hang, or be cut off from the network, which TCP does not notice for a long time."""
    (worker,) = await serving.training(1)
    for seed in range(2):
        await worker.commit(worker.delta(seed))
        await serving.until(lambda status: status.workers[0].seconds_since_last_call > 0.05)


async def test_worker_whose_connection_is_given_up_was_heard_no_later_for_that(serving: Serving) -> None:
    (worker,) = await serving.training(1)
    await worker.commit(worker.delta(1))
    (session,) = serving.server.sessions.live()
    await serving.until(lambda status: status.workers[0].seconds_since_last_call > 0.3)
    await worker.close()
    await eventually_async(lambda: not session.open_calls)
    assert (await serving.status()).workers[0].seconds_since_last_call > 0.3


async def test_worker_that_waits_for_the_server_is_not_silent(serve: Serve) -> None:
    serving = await serve(staging_buffers=1)
    first, second = await serving.training(2, LARGE)
    uploading, waiting = first.commit_stream(), second.commit_stream()
    await uploading.send_opening(first.prepare(first.delta(1)))
    await waiting.send(second.prepare(second.delta(1)).opening())
    await serving.until_waiting(1)
    assert [worker.seconds_since_last_call for worker in (await serving.status()).workers] == [0, 0]


@needs_shared_memory
async def test_worker_shares_memory_for_as_long_as_it_is_connected_for_that(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(shared_memory_socket=tmp_path / "memory")
    first, _ = await serving.training(2, LARGE)
    assert not any(worker.shares_memory for worker in (await serving.status()).workers)
    shared = await Sharing.of(first)
    assert [worker.shares_memory for worker in (await serving.status()).workers] == [True, False]
    newer = await Sharing.of(first)
    shared.close()
    await first.pull()
    await newer.commit(first.delta(1))
    assert [worker.shares_memory for worker in (await serving.status()).workers] == [True, False]
    newer.close()
    await serving.until(lambda status: not status.workers[0].shares_memory)
    again = await Sharing.of(first)
    assert (await serving.status()).workers[0].shares_memory
    await first.leave()
    assert not (await serving.status()).workers[0].shares_memory
    again.close()


@needs_shared_memory
async def test_status_shows_the_transport_of_each_workers_last_commit(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(shared_memory_socket=tmp_path / "memory")
    lane, grpc_only, shared = await serving.training(3, LARGE)
    for worker, uses_lane in ((lane, True), (grpc_only, False), (shared, False)):
        worker.uses_lane = uses_lane

    async def shown() -> list[int]:
        return [worker.transport for worker in (await serving.status()).workers]

    assert await shown() == [status_pb2.TRANSPORT_KIND_UNSPECIFIED] * 3
    await lane.commit(lane.delta(1))
    await grpc_only.commit(grpc_only.delta(1))
    regions = await Sharing.of(shared)
    await shared.pull()
    await regions.commit(shared.delta(1))
    assert await shown() == [
        status_pb2.TRANSPORT_KIND_LANE,
        status_pb2.TRANSPORT_KIND_GRPC,
        status_pb2.TRANSPORT_KIND_SHARED_MEMORY,
    ]
    lane.uses_lane = False  # a firewall now drops the lane's packets
    await lane.commit_on_new_stream(lane.prepare(lane.delta(2)))
    assert (await shown())[0] == status_pb2.TRANSPORT_KIND_GRPC
    await lane.leave()
    assert (await shown())[0] == status_pb2.TRANSPORT_KIND_UNSPECIFIED
    regions.close()


async def test_session_ids_appear_nowhere(serve: Serve) -> None:
    """They are neither in the status, nor in watched reports, nor in a refusal."""
    serving = await serve(session_timeout=0.5)
    first, second = await serving.training(2, LARGE)
    await first.commit(first.delta(1))
    held = second.commit_stream()
    await held.send_opening(second.prepare(second.delta(1)))
    said = [(await serving.status()).SerializeToString()]
    watching = Stream(serving.stub.WatchStatus(status_pb2.WatchStatusRequest(interval_seconds=0.1)))
    said.append((await watching.receive()).SerializeToString())
    for wrong in (
        first.prepare(first.delta(2), sequence=9),
        first.prepare(first.delta(2), base_version=transfer_pb2.Version(incarnation=1, clock=1)),
    ):
        refusal = await refused(first.commit_on_new_stream(wrong), "SEQUENCE_GAP", "UNKNOWN_INCARNATION")
        said.append((refusal.message + str(refusal.metadata)).encode())
    newer = serving.adopt(first.twin())
    await newer.join()
    refusal = await refused(first.heartbeat(), "NEWER_SESSION")
    said.append((refusal.message + str(refusal.metadata)).encode())
    said.append((await serving.status()).SerializeToString())
    for worker in (first, second, newer):
        for text in said:
            assert worker.session_id not in text
            assert worker.session_id.hex().encode() not in text
            assert repr(worker.session_id)[2:-1].encode() not in text


# -- watching ----------------------------------------------------------------------------------------------------------


async def test_watched_status_follows_the_run_and_ends_with_it(serve: Serve) -> None:
    """The stream ends with OK after the report that says FINISHED and has no live worker."""
    serving = await serve(commits=2)
    watching = Stream(serving.stub.WatchStatus(status_pb2.WatchStatusRequest(interval_seconds=0.1)))
    assert (await watching.receive()).status.run_state == run_pb2.RUN_STATE_WAITING
    (worker,) = await serving.training(1)
    await worker.commit(worker.delta(1))
    await worker.commit(worker.delta(2))
    async with asyncio.timeout(PATIENCE):
        while (report := await watching.receive()).status.run_state != run_pb2.RUN_STATE_FINISHED:
            pass
    assert report.status.commits == 2
    # The worker still lives, so there is more to come.
    assert await watching.receive() is not None
    await worker.leave()
    last = report
    async with asyncio.timeout(PATIENCE):
        while (report := await watching.receive()) is not None:
            last = report
    assert last.status.run_state == run_pb2.RUN_STATE_FINISHED
    assert [w.state for w in last.status.workers] == [status_pb2.WORKER_STATE_FINISHED]


async def test_who_asks_to_stay_is_told_on_after_the_end_of_the_run(serve: Serve) -> None:
    serving = await serve(commits=1)
    request = status_pb2.WatchStatusRequest(interval_seconds=0.1, stay=True)
    watching = Stream(serving.stub.WatchStatus(request))
    (worker,) = await serving.training(1)
    await worker.commit(worker.delta(1))
    await worker.leave()
    async with asyncio.timeout(PATIENCE):
        while (await watching.receive()).status.run_state != run_pb2.RUN_STATE_FINISHED:
            pass
    for _ in range(2):
        assert (await watching.receive()).status.run_state == run_pb2.RUN_STATE_FINISHED
    watching.cancel()


async def test_default_interval_is_taken(serving: Serving) -> None:
    watching = Stream(serving.stub.WatchStatus(status_pb2.WatchStatusRequest()))
    first, second = await watching.receive(), await watching.receive()
    assert second.status.uptime_seconds > first.status.uptime_seconds
    watching.cancel()


@pytest.mark.parametrize("interval", [0.01, -1.0, math.nan])
async def test_illegal_interval_is_refused(serving: Serving, interval: float) -> None:
    watching = Stream(serving.stub.WatchStatus(status_pb2.WatchStatusRequest(interval_seconds=interval)))
    await refused(watching.receive(), "MALFORMED", "BAD_VALUE")


# -- malformed requests ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["Join", "Heartbeat", "Leave", "GetStatus", "WatchStatus", "ReportEvaluation", "Control"]
)
async def test_request_of_bytes_that_are_no_protobuf_is_refused(serving: Serving, method: str) -> None:
    (worker,) = await serving.training(1)
    async with serving.unchanged(worker):
        call = getattr(serving.stub, method)(b"\xff\xff\xff")
        await refused(call.read() if method == "WatchStatus" else call, "MALFORMED")


@pytest.mark.parametrize("method", ["heartbeat", "leave"])
@pytest.mark.parametrize("length", [0, 15, 17])
async def test_session_id_of_another_length_is_refused_by_every_call(
    serving: Serving, method: str, length: int
) -> None:
    (worker,) = await serving.training(1)
    async with serving.unchanged(worker):
        stranger = serving.adopt(worker.twin(b"\x01" * length))
        await refused(getattr(stranger, method)(), "MALFORMED")


@pytest.mark.parametrize("method", ["heartbeat", "leave"])
async def test_unknown_session_is_refused_by_every_call(serving: Serving, method: str) -> None:
    (worker,) = await serving.training(1)
    async with serving.unchanged(worker):
        await refused(getattr(serving.adopt(worker.twin()), method)(), "UNKNOWN_SESSION")


async def test_leave_with_too_long_a_reason_is_refused(serving: Serving) -> None:
    (worker,) = await serving.training(1)
    async with serving.unchanged(worker):
        await refused(worker.leave("r" * 257), "MALFORMED")


# -- evaluators and operators ------------------------------------------------------------------------------------------


def evaluation(accuracy: float, clock: int = 1, **changes: object) -> operations_pb2.ReportEvaluationRequest:
    fields = {"version": transfer_pb2.Version(incarnation=1, clock=clock), "loss": 1 - accuracy, "samples": 360}
    return operations_pb2.ReportEvaluationRequest(**(fields | {"accuracy": accuracy, "evaluator": "eve"} | changes))


@pytest.mark.parametrize(
    "broken",
    [{"loss": math.inf}, {"loss": -math.inf}, {"loss": 1.0, "bits_per_character": math.inf}],
    ids=["infinite", "minus-infinite", "infinite-bits"],
)
async def test_an_evaluation_with_an_infinite_loss_is_the_newest_but_never_the_best(
    serving: Serving, broken: dict[str, float]
) -> None:
    report = serving.stub.ReportEvaluation
    assert not (await report(evaluation(0.9, 1, **broken))).best
    assert not (await serving.status()).HasField("best_evaluation")
    assert (await report(evaluation(0.2, 2))).best
    assert not (await report(evaluation(1.0, 3, **broken))).best
    status = await serving.status()
    assert (status.last_evaluation.accuracy, status.best_evaluation.accuracy) == (1.0, pytest.approx(0.2))


@pytest.mark.parametrize("claim", [1e300, -1e300, math.inf, -math.inf, math.nan, sys.float_info.max])
async def test_one_of_four_workers_cannot_move_the_runs_loss_beyond_the_others(serving: Serving, claim: float) -> None:
    """This holds for the status and for the curve of its history."""
    honest = [1.0, 1.25, 1.5]
    for worker, loss in zip(await serving.training(4), [*honest, claim], strict=True):
        commit = worker.prepare(worker.delta(1))
        commit.header.loss = loss
        await worker.commit_on_new_stream(commit)
    assert min(honest) <= (await serving.status()).loss <= max(honest)
    await serving.stub.Control(
        operations_pb2.ControlRequest(action=operations_pb2.CONTROL_ACTION_FINISH), timeout=PATIENCE
    )
    history = await serving.stub.GetHistory(history_pb2.GetHistoryRequest(), timeout=PATIENCE)
    losses = [one.loss for one in history.intervals if one.HasField("loss")]
    assert losses
    assert all(min(honest) <= loss <= max(honest) for loss in losses)


async def test_evaluations_are_remembered_the_newest_and_the_best(serving: Serving) -> None:
    await serving.training(1)
    bests = []
    for clock, accuracy in enumerate([0.5, 0.9, 0.7], 1):
        answer = await serving.stub.ReportEvaluation(evaluation(accuracy, clock))
        bests.append(answer.best)
        assert answer.run_state == run_pb2.RUN_STATE_TRAINING
    assert bests == [True, True, False]
    status = await serving.status()
    assert (status.last_evaluation.accuracy, status.last_evaluation.version.clock) == (0.7, 3)
    assert (status.best_evaluation.accuracy, status.best_evaluation.version.clock) == (0.9, 2)
    assert status.best_evaluation.loss == pytest.approx(0.1)
    assert (status.best_evaluation.samples, status.best_evaluation.evaluator) == (360, "eve")
    assert status.best_evaluation.run_seconds >= 0
    assert not status.best_evaluation.HasField("bits_per_character")


async def test_bits_a_character_are_those_that_were_reported(serving: Serving) -> None:
    await serving.training(1)
    for bits in (0.0, 3.5):
        await serving.stub.ReportEvaluation(evaluation(0.5, bits_per_character=bits))
        seen = (await serving.status()).last_evaluation
        assert seen.HasField("bits_per_character")
        assert seen.bits_per_character == bits


@pytest.mark.parametrize(
    "changes",
    [
        {"accuracy": 1.5},
        {"accuracy": -0.1},
        {"accuracy": math.nan},
        {"loss": math.nan},
        {"bits_per_character": math.nan},
        {"evaluator": "e" * 257},
    ],
    ids=str,
)
async def test_illegal_evaluation_is_refused(serving: Serving, changes: dict[str, object]) -> None:
    (worker,) = await serving.training(1)
    async with serving.unchanged(worker):
        request = evaluation(0.5)
        for name, value in changes.items():
            setattr(request, name, value)
        await refused(serving.stub.ReportEvaluation(request), "BAD_VALUE", "MALFORMED")
        assert not (await serving.status()).HasField("last_evaluation")


@pytest.mark.parametrize("action", [operations_pb2.CONTROL_ACTION_UNSPECIFIED, 77])
async def test_unknown_control_action_is_refused(serving: Serving, action: int) -> None:
    (worker,) = await serving.training(1)
    async with serving.unchanged(worker):
        await refused(serving.stub.Control(operations_pb2.ControlRequest(action=action)), "MALFORMED", "NOT_OFFERED")


async def test_checkpoint_without_a_data_directory_is_not_offered(serving: Serving) -> None:
    (worker,) = await serving.training(1)
    async with serving.unchanged(worker):
        request = operations_pb2.ControlRequest(action=operations_pb2.CONTROL_ACTION_CHECKPOINT)
        refusal = await refused(serving.stub.Control(request), "NOT_OFFERED")
        assert "data" in refusal.message


# -- health and reflection ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", *(service.full_name for service in SERVICES)])
async def test_health_says_serving(serving: Serving, name: str) -> None:
    health = health_pb2_grpc.HealthStub(serving.channel)
    answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_health_watcher_sees_the_server_go(serving: Serving) -> None:
    health = health_pb2_grpc.HealthStub(serving.channel)
    watch = health.Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    stopping = asyncio.create_task(serving.stop())
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    watch.cancel()
    await stopping


async def reflected(serving: Serving) -> reflection_pb2.ServerReflectionResponse:
    stub = reflection_pb2_grpc.ServerReflectionStub(serving.channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    return await call.read()


async def test_reflection_lists_the_service_when_asked_for(serve: Serve) -> None:
    answer = await reflected(await serve(reflection=True))
    names = {service.name for service in answer.list_services_response.service}
    assert {*(service.full_name for service in SERVICES), "grpc.health.v1.Health"} <= names


async def test_reflection_is_off_by_default(serving: Serving) -> None:
    # Without a request: gRPC tells of one that it could not send any more as its own error, in place of the answer.
    call = reflection_pb2_grpc.ServerReflectionStub(serving.channel).ServerReflectionInfo(iter(()))
    assert await call.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_unread_status_watchers_do_not_stop_training(serving: Serving) -> None:
    watchers = [serving.stub.WatchStatus(status_pb2.WatchStatusRequest(interval_seconds=0.1)) for _ in range(8)]
    (worker,) = await serving.training(1)
    for seed in range(20):
        outcome = await worker.commit(worker.delta(seed))
    assert outcome.verdict.version.clock == 21
    assert np.isfinite(outcome.reply.values.parameters).all()
    for watcher in watchers:
        watcher.cancel()
