"""Callers that do not read what they asked for: they keep nobody out, their memory goes, and no traceback is logged."""

import asyncio
import os
import socket
import tempfile
from typing import Any

import pytest
from gem_server.flow import pull_service
from gem_server.service import status_codes
from gem_server.service.disconnect import disconnect
from gemps.v1 import parameters_pb2

from tests.waiting import eventually_async
from tests.wire.calls import open_channel
from tests.wire.conftest import Serve
from tests.wire.model import Model, Tensor
from tests.wire.refusals import PATIENCE, answered_or_refused, refused
from tests.wire.serving import Serving
from tests.wire.worker import RawWorker

# Far more than gRPC has under way for a client that does not read ahead.
WIDE = Model((Tensor("weight", (2_000_000,)),))
# A fraction of a tick: whoever stops reading is over it by the time of the next refusal.
AT_ONCE = 0.01


async def until_calls_are_over() -> None:
    """Until gRPC's server runs no call any more."""

    def are_over() -> bool:
        names = {getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()}
        return "_handle_exceptions" not in names

    await eventually_async(are_over)


async def unread_pull(worker: RawWorker, **fields: Any) -> Any:
    """A pull whose client reads the first chunk and no more."""
    call = worker.stub.Pull(parameters_pb2.PullRequest(**fields))
    message = await asyncio.wait_for(call.read(), PATIENCE)
    assert message.HasField("header")
    return call


async def until_read(serving: Serving) -> None:
    """Until a reader without a session gets all of the parameters."""

    async def is_read() -> bool:
        return hasattr(await answered_or_refused(serving.read(WIDE), "TOO_MANY"), "complete")

    await eventually_async(is_read)


async def test_readers_that_stop_reading_make_room_for_others(serve: Serve) -> None:
    serving = await serve(stall_timeout=AT_ONCE)
    (worker,) = await serving.training(1, WIDE, reads_ahead=False)
    calls = []
    for seed in (1, 2):  # of two versions
        calls.append(await unread_pull(worker))
        await worker.commit(worker.delta(seed))
    await until_read(serving)
    for call in calls:
        call.cancel()


async def test_places_of_readers_that_stop_reading_go_to_others(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_service, "MAX_SHARED_READERS", 2)
    serving = await serve(stall_timeout=AT_ONCE)
    (worker,) = await serving.training(1, WIDE, reads_ahead=False)
    calls = [await unread_pull(worker) for _ in range(2)]
    await until_read(serving)
    for call in calls:
        call.cancel()


async def test_reader_that_reads_keeps_its_place(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_service, "MAX_SHARED_READERS", 1)
    serving = await serve()
    (worker,) = await serving.training(1, WIDE, reads_ahead=False)
    call = await unread_pull(worker)
    await refused(serving.read(WIDE), "TOO_MANY")
    while (message := await asyncio.wait_for(call.read(), PATIENCE)).chunk:
        if message.HasField("footer"):
            break
    await until_read(serving)


@pytest.mark.parametrize(
    ("family", "host", "name"),
    [(socket.AF_INET, "127.0.0.1", "ipv4:{}:{}"), (socket.AF_INET6, "::1", "ipv6:%5B{}%5D:{}")],
)
def test_hanging_up_ends_one_connection_and_keeps_no_descriptor(family: int, host: str, name: str) -> None:
    with socket.create_server((host, 0), family=family) as listening, tempfile.TemporaryFile():
        peers = [socket.create_connection(listening.getsockname()[:2]) for _ in range(2)]
        taken = [listening.accept()[0] for _ in peers]
        before = sorted(os.listdir("/dev/fd"))
        disconnect(name.format(host, peers[0].getsockname()[1]))
        assert sorted(os.listdir("/dev/fd")) == before
        assert peers[0].recv(1) == b""
        taken[1].send(b"x")
        assert peers[1].recv(1) == b"x"
        for one in (*peers, *taken):
            one.close()


async def test_connection_of_a_peer_that_never_takes_its_status_is_closed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise what it left unread would stay in memory for as long as it likes."""
    monkeypatch.setattr(status_codes, "STATUS_SECONDS", 0.2)
    serving = await serve()
    (worker,) = await serving.training(1, WIDE)
    channel = open_channel(serving.address, reads_ahead=False)
    reader = RawWorker(serving.address, WIDE, "reader", channel=channel)
    serving.adopt(reader)
    await reader.join()
    calls = [await unread_pull(reader, session_id=reader.session_id)]
    await reader.twin().join()  # which ends the session
    await until_calls_are_over()
    assert (await serving.status()).workers, "other connections go on"
    await worker.commit(worker.delta(1))
    for call in calls:
        call.cancel()


@pytest.mark.parametrize("kind", ["pull", "commit"])
async def test_caller_that_goes_while_its_session_ends_leaves_no_traceback(
    serving: Serving, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    (worker,) = await serving.training(1, WIDE, reads_ahead=False)
    if kind == "pull":
        call = await unread_pull(worker, session_id=worker.session_id)
    else:
        stream = worker.commit_stream()
        await stream.send_commit(worker.prepare(worker.delta(1)))
        call = stream.call
        assert (await asyncio.wait_for(call.read(), PATIENCE)).HasField("verdict")
    twin = serving.adopt(worker.twin())
    await twin.join()  # whose answer comes when the older session's calls have been ended
    call.cancel()
    await until_calls_are_over()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
