"""SIGTERM: not serving -> refuse joins -> finish the queue -> checkpoint -> stop (docs/design.md, section 4)."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from gem_server.flow.request_queue import FifoQueue
from gem_server.flow.requests import AnyRequest
from gem_server.state.sessions import Session
from gemps.v1 import status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.wire.calls import Stream
from tests.wire.conftest import Serve
from tests.wire.model import LARGE
from tests.wire.processes import server_process
from tests.wire.refusals import PATIENCE, refused
from tests.wire.serving import Serving
from tests.wire.worker import CommitStream, RawWorker

pytestmark = pytest.mark.usefixtures("each_transport")


class HeldQueue(FifoQueue):
    """Serves nothing while `open` is cleared, so that a drain lasts as long as a test wants."""

    def __init__(self, ring: Callable[[], Sequence[Session]], started: Callable[[], bool]) -> None:
        super().__init__(started)
        self.open = asyncio.Event()
        self.open.set()
        self.holds_one = asyncio.Event()

    async def get(self) -> AnyRequest:
        request = await super().get()
        if not self.open.is_set():
            self.holds_one.set()
        await self.open.wait()
        return request


async def begin_drain(
    serve: Serve, **settings: object
) -> tuple[Serving, RawWorker, CommitStream, RawWorker, "asyncio.Task[None]"]:
    """A server that drains, a worker whose complete commit is not applied yet, its stream, and another worker."""
    serving = await serve(make_queue=HeldQueue, **settings)
    worker, other = await serving.training(2, LARGE)
    queue = serving.server.queue
    queue.open.clear()
    stream = worker.commit_stream()
    await stream.send_commit(worker.prepare(worker.delta(1)))
    # What was sent may not have arrived yet, and a cancelled stream takes with it what is on its way.
    await asyncio.wait_for(queue.holds_one.wait(), PATIENCE)
    return serving, worker, stream, other, asyncio.create_task(serving.stop())


async def test_new_work_is_refused_while_the_server_drains(serve: Serve) -> None:
    serving, _, stream, other, stopping = await begin_drain(serve)
    refusal = await refused(serving.worker(LARGE).join(), "DRAINING")
    assert refusal.retry_after is not None
    await refused(other.commit_on_new_stream(other.prepare(other.delta(2))), "DRAINING")
    health = health_pb2_grpc.HealthStub(serving.channel)
    answer = await health.Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
    serving.server.queue.open.set()
    assert (await stream.outcome()).verdict.version.clock == 2
    # It got what it had completed; now it is told to go, so that nobody has to wait for it.
    await stream.refused("DRAINING")
    await stopping


async def test_status_is_still_told_while_the_server_drains(serve: Serve) -> None:
    serving, _, stream, other, stopping = await begin_drain(serve)
    assert (await serving.stub.GetStatus(status_pb2.GetStatusRequest())).status.commits == 0
    assert (await other.heartbeat()).last_applied_sequence == 0
    serving.server.queue.open.set()
    await stream.outcome()
    await stopping


async def test_session_id_of_a_complete_commit_is_in_the_checkpoint_of_a_drain(serve: Serve, tmp_path: Path) -> None:
    """Applied while draining, told, saved: the retry after the restart is a duplicate."""
    serving, worker, stream, _, stopping = await begin_drain(serve, data_dir=tmp_path)
    stream.cancel()
    serving.server.queue.open.set()
    await stopping
    await serving.close()
    again = await serve(data_dir=tmp_path, resume=True)
    back = again.adopt(RawWorker(again.address, LARGE, worker.name))
    back.session_id, back.version = worker.session_id, worker.version
    assert (await back.join()).last_applied_sequence == 1
    back.sequence = 0
    repeat = await back.commit_stream().outcome_of_repeat(back.prepare(worker.delta(1)))
    assert repeat.verdict.duplicate
    assert repeat.verdict.version.clock == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_server_process_ends_with_0_though_streams_are_open(tmp_path: Path, number: signal.Signals) -> None:
    """An idle stream, an unfinished upload and a watcher: none of them may keep the process."""
    async with server_process(tmp_path, data_dir=str(tmp_path / "data")) as server:
        idle, uploading = await server.training(2, LARGE)
        await idle.commit(idle.delta(1))
        stream = uploading.commit_stream()
        await stream.send_opening(uploading.prepare(uploading.delta(1)))
        watching = Stream(server.stub.WatchStatus(status_pb2.WatchStatusRequest()))
        await watching.receive()
        os.kill(server.process.pid, number)
        await stream.refused("DRAINING")
        assert await asyncio.wait_for(server.process.wait(), 30) == 0
        assert (tmp_path / "data" / "latest" / "model.safetensors").exists()
