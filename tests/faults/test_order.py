"""At level commit: first the disk, then whoever could see it. The disk is stopped, and the server asked everything."""

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from gem_server.durability import log, recovery
from gem_server.server import Server
from gem_server.settings import ServerSettings
from gemps.v1 import operations_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.faults.disks import FailingDisk, GatedDisk
from tests.wire.calls import Stream
from tests.wire.model import LARGE, SMALL
from tests.wire.refusals import PATIENCE, refused
from tests.wire.serving import Serving

CHECKPOINT = operations_pb2.ControlRequest(action=operations_pb2.CONTROL_ACTION_CHECKPOINT)


@pytest.fixture
async def gated(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[tuple[Serving, GatedDisk]]:
    """Parameter: further settings."""
    disk = GatedDisk()
    settings = {"data_dir": tmp_path, "durability": "commit", "checkpoint_interval": 0} | getattr(request, "param", {})
    server = Server(ServerSettings(bind="127.0.0.1:0", **settings), files=disk)
    serving = Serving(server, await server.start())
    yield serving, disk
    disk.gate.set()
    await serving.close()
    await serving.stop()


async def reached(disk: GatedDisk) -> None:
    assert await asyncio.to_thread(disk.reached.wait, PATIENCE)


async def applied(serving: Serving, clock: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while serving.server.central.clock < clock:
            await asyncio.sleep(0)


async def server_has_had_its_turn(serving: Serving) -> None:
    """Health needs no disk: when it has answered several times, whatever else could be answered has been too."""
    for _ in range(20):
        answer = await health_pb2_grpc.HealthStub(serving.channel).Check(
            health_pb2.HealthCheckRequest(), timeout=PATIENCE
        )
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_nothing_shows_a_commit_before_it_is_synced(gated: tuple[Serving, GatedDisk]) -> None:
    serving, disk = gated
    worker, other = await serving.training(2)
    disk.gate.clear()
    commit = worker.prepare(worker.delta(1))
    stream = worker.commit_stream()
    await stream.send_commit(commit)
    await reached(disk)
    assert serving.server.central.clock == 2
    watch = Stream(serving.stub.WatchStatus(status_pb2.WatchStatusRequest()))
    asked = {
        "reply": stream.outcome(),
        "repeat": worker.twin(worker.session_id).commit_stream().outcome_of_repeat(commit),
        "pull": other.pull(),
        "shared pull": serving.read(SMALL),
        "status": serving.status(),
        "watch": watch.receive(),
        "heartbeat": worker.heartbeat(),
        "join": serving.joined(name="late"),
        "stale base": refused(other.commit_on_new_stream(other.prepare(other.delta(2), sequence=7)), "SEQUENCE_GAP"),
        "checkpoint": serving.stub.Control(CHECKPOINT),
    }
    running = {name: asyncio.ensure_future(call) for name, call in asked.items()}
    await server_has_had_its_turn(serving)
    shown = [name for name, call in running.items() if call.done()]
    # The stream of the first reply is superseded by that of its repeat: it was told so, and nothing of the commit.
    assert shown in ([], ["reply"])
    running.pop("reply").add_done_callback(lambda call: call.exception())
    disk.gate.set()
    for call in running.values():
        await asyncio.wait_for(call, PATIENCE)
    assert running["repeat"].result().verdict.duplicate
    assert running["status"].result().commits == 1
    assert running["pull"].result().clock == running["shared pull"].result().clock == 2
    assert running["heartbeat"].result().last_applied_sequence == 1
    watch.cancel()


async def test_parameters_that_are_being_written_do_not_change(
    gated: tuple[Serving, GatedDisk], tmp_path: Path
) -> None:
    """Its session pulls while they are: the pull would write them, and waits."""
    serving, disk = gated
    first, second = await serving.training(2, LARGE)
    disk.gate.clear()
    stream = first.commit_stream()
    await stream.send_commit(first.prepare(first.delta(1)))
    await reached(disk)
    others = second.commit_stream()
    await others.send_commit(second.prepare(second.delta(2)))
    await applied(serving, 3)
    pulling = asyncio.ensure_future(serving.adopt(first.twin(first.session_id)).pull())
    await server_has_had_its_turn(serving)
    assert not pulling.done()
    disk.gate.set()
    outcome = await others.outcome()
    pulled = await asyncio.wait_for(pulling, PATIENCE)
    assert bytes(pulled.payload) == bytes(outcome.reply.payload)
    found = recovery.recover(tmp_path)
    assert found is not None
    assert found.whole.clock == 3
    assert found.whole.parameters.tobytes() + found.whole.buffers == found_as_server_keeps(serving)
    # And the record of clock 2 is whole too, with what was theta then.
    path = next((tmp_path / "log").glob("*.wal"))
    path.write_bytes(path.read_bytes()[: _end_of_first_record(path)])
    before = recovery.recover(tmp_path)
    assert before is not None
    assert before.whole.clock == 2
    assert before.whole.parameters.tobytes() != found.whole.parameters.tobytes()


def found_as_server_keeps(serving: Serving) -> bytes:
    return serving.server.central.parameters.tobytes() + serving.server.central.buffers.joined()


def _end_of_first_record(path: Path) -> int:
    data = memoryview(path.read_bytes())
    header = log.log_format.decode_header(data)
    assert header is not None
    return next(log.log_format.read_records(data, header)).end


async def test_commits_that_come_while_the_disk_is_busy_share_one_write(
    gated: tuple[Serving, GatedDisk], tmp_path: Path
) -> None:
    serving, disk = gated
    workers = await serving.training(4)
    disk.gate.clear()
    streams = [worker.commit_stream() for worker in workers]
    for number, (worker, stream) in enumerate(zip(workers, streams, strict=True)):
        await stream.send_commit(worker.prepare(worker.delta(number)))
        await applied(serving, number + 2)
        await reached(disk)
    disk.gate.set()
    for stream in streams:
        await stream.outcome()
    (path,) = (tmp_path / "log").glob("*.wal")
    data = memoryview(path.read_bytes())
    header = log.log_format.decode_header(data)
    assert header is not None
    groups = [len(record.document["entries"]) for record in log.log_format.read_records(data, header)]
    assert groups == [1, 3]


async def test_chain_of_logs_behind_checkpoints_that_failed_is_read_to_its_end(tmp_path: Path) -> None:
    disk = FailingDisk(errno.ENOSPC)
    server = Server(
        ServerSettings(bind="127.0.0.1:0", data_dir=tmp_path, durability="commit", checkpoint_interval=0), files=disk
    )
    serving = Serving(server, await server.start())
    try:
        (worker,) = await serving.training(1)
        for seed in range(3):
            await worker.commit(worker.delta(seed))
            disk.failing = {"rename"}
            await refused(serving.stub.Control(CHECKPOINT), "STORAGE_FULL")
            disk.failing = set()
        outcome = await worker.commit(worker.delta(9))
        assert len(list((tmp_path / "log").glob("*.wal"))) >= 4
        found = recovery.recover(tmp_path)
        assert found is not None
        assert (found.whole.clock, found.replayed) == (5, 4)
        assert found.whole.parameters.tobytes() + found.whole.buffers == bytes(outcome.reply.payload)
        await serving.stub.Control(CHECKPOINT)
        assert len(list((tmp_path / "log").glob("*.wal"))) == 1
    finally:
        await serving.close()
        await serving.stop()


async def test_large_log_asks_for_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "LARGE_BYTES", 20_000)
    monkeypatch.setattr(log, "LARGE_RECORDS", 1)
    server = Server(ServerSettings(bind="127.0.0.1:0", data_dir=tmp_path, durability="commit", checkpoint_interval=0))
    serving = Serving(server, await server.start())
    try:
        (worker,) = await serving.training(1)
        for seed in range(8):
            await worker.commit(worker.delta(seed))
        await serving.until(lambda status: status.checkpoint.version.clock > 1)
    finally:
        await serving.close()
        await serving.stop()
