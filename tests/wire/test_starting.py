"""Before kernels are compiled and recovery is done the server listens, says NOT_SERVING, and refuses with STARTING."""

import asyncio
import threading

import pytest
from gem_server.server import Server
from gem_server.settings import ServerSettings
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.wire.refusals import PATIENCE, refused
from tests.wire.serving import Serving


@pytest.mark.parametrize("method", ["Join", "GetStatus", "Pull", "Commit"])
async def test_calls_are_refused_with_a_retry_hint_until_the_server_is_ready(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(ServerSettings(bind="127.0.0.1:0"))
    compiled = threading.Event()
    monkeypatch.setattr(server.rule, "warm_up", compiled.wait)
    starting = asyncio.create_task(server.start())
    async with asyncio.timeout(PATIENCE):
        while not server.port:
            await asyncio.sleep(0)
    serving = Serving(server, server.port)
    try:
        worker = serving.worker()
        stream = worker.commit_stream()
        await stream.send(worker.prepare(worker.delta(1)).whole())
        calls = {"Join": worker.join, "GetStatus": serving.status, "Pull": worker.pull, "Commit": stream.receive}
        refusal = await refused(calls[method](), "STARTING")
        assert refusal.retry_after is not None
        health = health_pb2_grpc.HealthStub(serving.channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True)
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        compiled.set()
        await starting
        await serving.training(1)
    finally:
        compiled.set()
        await serving.close()
        await serving.stop()
