"""Callers that say nothing, or hardly anything: they hold nothing for long, and hold nobody up."""

import asyncio
import struct
from typing import Any

import grpc
import pytest
from gem_server.service import first_message, health, status
from gemps.v1 import status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.wire.calls import SERVICE
from tests.wire.refusals import PATIENCE, Refusal, answered_or_refused, refused
from tests.wire.serving import Serving


def silent_call(channel: grpc.aio.Channel, method: str) -> Any:
    """A call whose client sends its headers, and no message."""
    return channel.stream_stream(method)()


@pytest.mark.parametrize("method", [method.name for method in SERVICE.methods])
async def test_call_without_a_first_message_is_ended(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(first_message, "PATIENCE_SECONDS", 0.1)
    await refused(silent_call(serving.channel, f"/{SERVICE.full_name}/{method}").read(), "STALLED")


async def test_stream_that_has_begun_may_be_silent(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    (worker,) = await serving.training(1)
    await worker.commit(worker.delta(1))
    monkeypatch.setattr(first_message, "PATIENCE_SECONDS", 0.1)
    await refused(silent_call(serving.channel, f"/{SERVICE.full_name}/Commit").read(), "STALLED")
    await worker.commit(worker.delta(2))


async def test_where_many_are_silent_the_first_of_them_go(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_message, "CROWD", 2)
    monkeypatch.setattr(first_message, "CROWDED_SECONDS", 0.0)
    monkeypatch.setattr(first_message, "PATIENCE_SECONDS", 1000.0)
    calls = []
    for number in range(1, 6):
        calls.append(silent_call(serving.channel, f"/{SERVICE.full_name}/Initialize"))
        await calls[-1].wait_for_connection()
        async with asyncio.timeout(PATIENCE):
            while len(serving.server._answering.first_messages._waiting) < min(number, 2):
                await asyncio.sleep(0.01)
    for call in calls[:3]:
        await refused(call.read(), "STALLED")
    assert not calls[3].done()
    assert not calls[4].done()
    for call in calls:
        call.cancel()


async def test_call_without_any_message_is_refused(serving: Serving) -> None:
    call = silent_call(serving.channel, f"/{SERVICE.full_name}/GetStatus")
    await call.done_writing()
    await refused(call.read(), "MALFORMED")


async def test_watchers_of_health_are_bounded(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "MAX_WATCHERS", 1)
    stub = health_pb2_grpc.HealthStub(serving.channel)
    first = stub.Watch(health_pb2.HealthCheckRequest())
    assert (await first.read()).status == health_pb2.HealthCheckResponse.SERVING
    await refused(stub.Watch(health_pb2.HealthCheckRequest()).read(), "TOO_MANY")
    first.cancel()
    unknown = health_pb2.HealthCheckRequest(service="unknown")
    async with asyncio.timeout(PATIENCE):
        while isinstance(answer := await answered_or_refused(stub.Watch(unknown).read(), "TOO_MANY"), Refusal):
            pass
    assert answer.status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    with pytest.raises(grpc.aio.AioRpcError, match="NOT_FOUND"):
        await stub.Check(unknown)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


class ReadsNothing:
    """A caller that gives the server no window, so that no answer's message can be sent to it."""

    def __init__(self, path: str, message: bytes) -> None:
        headers = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "te": "trailers"}
        block = b"".join(
            b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
            for name, value in (headers | {"content-type": "application/grpc"}).items()
        )
        self._opening = (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + frame(4, 0, 0, struct.pack(">HI", 4, 0))  # SETTINGS_INITIAL_WINDOW_SIZE
            + frame(1, 4, 1, block)
            + frame(0, 1, 1, b"\0" + struct.pack(">I", len(message)) + message)
        )

    async def call(self, serving: Serving) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", serving.server.port)
        writer.write(self._opening)
        await writer.drain()
        return reader, writer


async def test_watcher_of_health_that_reads_nothing_does_not_hold_up_the_servers_end(serving: Serving) -> None:
    _, writer = await ReadsNothing("/grpc.health.v1.Health/Watch", b"").call(serving)
    async with asyncio.timeout(PATIENCE):
        while not serving.server._listener._health._watchers:
            await asyncio.sleep(0.01)
    await asyncio.wait_for(serving.stop(), PATIENCE)
    writer.close()


async def test_watcher_of_the_status_that_reads_nothing_gives_its_place_back(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "MAX_WATCHERS", 1)
    monkeypatch.setattr(status, "UNREAD_SECONDS", 0.2)
    _, writer = await ReadsNothing(f"/{SERVICE.full_name}/WatchStatus", b"").call(serving)
    async with asyncio.timeout(PATIENCE):
        while not serving.server._status.watchers:
            await asyncio.sleep(0.01)
        request = status_pb2.WatchStatusRequest()
        while isinstance(await answered_or_refused(serving.stub.WatchStatus(request).read(), "TOO_MANY"), Refusal):
            await asyncio.sleep(0.05)
    writer.close()


async def test_however_many_watch_the_status_is_made_once(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "MIN_INTERVAL_SECONDS", 1000.0)
    request = status_pb2.WatchStatusRequest(interval_seconds=2000.0)
    watchers = [serving.stub.WatchStatus(request) for _ in range(3)]
    seen = {(await asyncio.wait_for(watcher.read(), PATIENCE)).status.uptime_seconds for watcher in watchers}
    assert len(seen) == 1
    for watcher in watchers:
        watcher.cancel()
