"""Callers that say nothing, or hardly anything: they hold nothing for long, and hold nobody up."""

import asyncio
import struct
from collections.abc import Awaitable
from typing import Any

import grpc
import pytest
from gem_server.service import first_message, health, status
from gemps.v1 import status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.waiting import eventually_async
from tests.wire.calls import METHODS, path_of
from tests.wire.refusals import PATIENCE, Refusal, answered_or_refused, refused
from tests.wire.serving import Serving


def silent_call(channel: grpc.aio.Channel, method: str) -> Any:
    """A call whose client sends its headers, and no message."""
    return channel.stream_stream(method)()


@pytest.mark.parametrize("method", [method.name for method in METHODS.values()])
async def test_call_without_a_first_message_is_ended(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(first_message, "PATIENCE_SECONDS", 0.1)
    await refused(silent_call(serving.channel, path_of(method)).read(), "STALLED")


async def test_stream_that_has_begun_may_be_silent(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    (worker,) = await serving.training(1)
    await worker.commit(worker.delta(1))
    monkeypatch.setattr(first_message, "PATIENCE_SECONDS", 0.1)
    await refused(silent_call(serving.channel, path_of("Commit")).read(), "STALLED")
    await worker.commit(worker.delta(2))


async def test_where_many_are_silent_the_first_of_them_go(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_message, "CROWD", 2)
    monkeypatch.setattr(first_message, "CROWDED_SECONDS", 0.0)
    monkeypatch.setattr(first_message, "PATIENCE_SECONDS", 1000.0)
    begun = 0
    wait = first_message.FirstMessages.wait

    async def counting(self: first_message.FirstMessages, reading: Awaitable[Any]) -> Any:
        nonlocal begun
        begun += 1
        return await wait(self, reading)

    monkeypatch.setattr(first_message.FirstMessages, "wait", counting)
    calls = []
    for number in range(1, 6):
        calls.append(silent_call(serving.channel, path_of("Initialize")))
        await calls[-1].wait_for_connection()
        await eventually_async(lambda expected=number: begun == expected)
    for call in calls[:3]:
        await refused(call.read(), "STALLED")
    assert not calls[3].done()
    assert not calls[4].done()
    for call in calls:
        call.cancel()


async def test_call_without_any_message_is_refused(serving: Serving) -> None:
    call = silent_call(serving.channel, path_of("GetStatus"))
    await call.done_writing()
    await refused(call.read(), "MALFORMED")


async def test_watchers_of_health_are_bounded(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle watchers do not keep their places forever. The oldest is ended, and may watch again."""
    monkeypatch.setattr(health, "MAX_WATCHERS", 2)
    stub = health_pb2_grpc.HealthStub(serving.channel)
    watches = []
    for _ in range(3):
        watches.append(stub.Watch(health_pb2.HealthCheckRequest()))
        assert (await watches[-1].read()).status == health_pb2.HealthCheckResponse.SERVING
    refusal = await refused(watches[0].read(), "TOO_MANY")
    assert "Check" in refusal.message
    assert refusal.retry_after
    assert (await stub.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
    assert not watches[1].done()
    unknown = health_pb2.HealthCheckRequest(service="unknown")
    again = stub.Watch(unknown)
    assert (await again.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    await refused(watches[1].read(), "TOO_MANY")
    assert not watches[2].done()
    with pytest.raises(grpc.aio.AioRpcError, match="NOT_FOUND"):
        await stub.Check(unknown)


class HealthCaller:
    """A gRPC context of a call from `peer`. If `reads` is false, no write ends."""

    def __init__(self, peer: str, *, reads: bool = True) -> None:
        self._peer, self._reads = peer, reads
        self.written = 0

    def peer(self) -> str:
        return self._peer

    async def write(self, message: bytes) -> None:
        self.written += 1
        if not self._reads:
            await asyncio.Event().wait()


async def test_the_address_with_most_watches_of_health_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Therefore one host cannot take the places of others."""
    monkeypatch.setattr(health, "MAX_WATCHERS", 3)
    service = health.Health("")
    peers = ["ipv4:10.0.0.1:1", "ipv4:10.0.0.2:2", "ipv4:10.0.0.2:3", "ipv6:%5B::1%5D:4", "ipv4:10.0.0.2:5"]
    watches = []
    for peer in peers:
        caller = HealthCaller(peer)
        watches.append(asyncio.create_task(service.watch(b"", caller)))  # type: ignore[arg-type]
        async with asyncio.timeout(PATIENCE):
            while not caller.written:
                await asyncio.sleep(0)
    with pytest.raises(health.RefusedError, match="oldest"):
        await watches[1]
    with pytest.raises(health.RefusedError, match="oldest"):
        await watches[2]
    assert [watch.done() for watch in watches] == [False, True, True, False, False]
    for watch in watches:
        watch.cancel()
    await asyncio.gather(*watches, return_exceptions=True)
    assert not service.watchers


async def test_watcher_of_health_that_reads_nothing_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "UNREAD_SECONDS", 0.05)
    service = health.Health("")
    with pytest.raises(health.RefusedError, match="no health was read"):
        async with asyncio.timeout(PATIENCE):
            await service.watch(b"", HealthCaller("ipv4:10.0.0.1:1", reads=False))  # type: ignore[arg-type]
    assert not service.watchers


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame of HTTP/2."""
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

    async def call(self, serving: Serving) -> asyncio.StreamWriter:
        """Return when the call runs, for which the server needs no window, because it has only sent headers."""
        reader, writer = await asyncio.open_connection("127.0.0.1", serving.server.port)
        writer.write(self._opening)
        await writer.drain()
        async with asyncio.timeout(PATIENCE):
            while True:
                head = await reader.readexactly(9)
                await reader.readexactly(int.from_bytes(head[:3], "big"))
                if head[3] == 1:  # HEADERS
                    return writer


async def test_pings_are_answered_however_many_come(serving: Serving) -> None:
    """With a limit gRPC (1.85.1) adds to an error at each ping of a peer that reads no answer: 30 times the cost.

    Without one it stops reading at 10 000 answers that it cannot send.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", serving.server.port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b""))
    async with asyncio.timeout(PATIENCE):
        for number in range(10):
            ping = struct.pack(">Q", number)
            writer.write(frame(6, 0, 0, ping))
            head, payload = b"", b""
            while (head[3:5], payload) != (b"\x06\x01", ping):
                head = await reader.readexactly(9)
                payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
                assert head[3] != 7, f"GOAWAY after {number} pings: {payload!r}"
    writer.close()


async def test_watcher_of_health_that_reads_nothing_does_not_hold_up_the_servers_end(serving: Serving) -> None:
    writer = await ReadsNothing("/grpc.health.v1.Health/Watch", b"").call(serving)
    await asyncio.wait_for(serving.stop(), PATIENCE)
    writer.close()


async def test_watcher_of_the_status_that_reads_nothing_gives_its_place_back(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "MAX_WATCHERS", 1)
    monkeypatch.setattr(status, "UNREAD_SECONDS", 0.2)
    writer = await ReadsNothing(path_of("WatchStatus"), b"").call(serving)
    await eventually_async(lambda: serving.server.status_watchers)
    request = status_pb2.WatchStatusRequest()

    async def is_let_in() -> bool:
        answer = await answered_or_refused(serving.stub.WatchStatus(request).read(), "TOO_MANY")
        return not isinstance(answer, Refusal)

    await eventually_async(is_let_in)
    writer.close()


async def test_however_many_watch_the_status_is_made_once(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "MIN_INTERVAL_SECONDS", 1000.0)
    request = status_pb2.WatchStatusRequest(interval_seconds=2000.0)
    watchers = [serving.stub.WatchStatus(request) for _ in range(3)]
    seen = {(await asyncio.wait_for(watcher.read(), PATIENCE)).status.uptime_seconds for watcher in watchers}
    assert len(seen) == 1
    for watcher in watchers:
        watcher.cancel()
