"""A server that ends with its run: it waits for whom it owes an answer, and tells supervisors where it stands."""

import asyncio
import logging
from pathlib import Path

import pytest
from gem_server.server import Server
from gem_server.settings import ServerSettings
from gemps.v1 import run_pb2, status_pb2

from tests.wire.calls import Stream
from tests.wire.conftest import Serve
from tests.wire.model import LARGE
from tests.wire.refusals import PATIENCE, refused
from tests.wire.serving import Serving
from tests.wire.test_draining import begin_drain


async def finished_run(serve: Serve, data_dir: Path) -> None:
    """A checkpoint of a run that has spent its budget of one commit."""
    serving = await serve(commits=1, data_dir=data_dir)
    (worker,) = await serving.training(1)
    await worker.commit(worker.delta(1))
    await worker.leave()
    await serving.close()
    await serving.stop()


async def until_it_ends(serving: Serving) -> None:
    async with asyncio.timeout(PATIENCE):
        await serving.server.wait_until_done()


async def test_run_ends_when_its_workers_have_left(serve: Serve) -> None:
    serving = await serve(commits=1, exit_when_finished=True, exit_grace=1e6)
    (worker,) = await serving.training(1)
    await worker.commit(worker.delta(1))
    ending = asyncio.create_task(until_it_ends(serving))
    await worker.heartbeat()
    assert not ending.done()
    await worker.leave()
    await ending


async def test_server_that_ends_with_its_run_waits_for_who_stays_to_watch(serve: Serve) -> None:
    serving = await serve(commits=1, exit_when_finished=True, exit_grace=1e6)
    watching = Stream(serving.stub.WatchStatus(status_pb2.WatchStatusRequest(interval_seconds=0.1, stay=True)))
    await watching.receive()
    (worker,) = await serving.training(1)
    await worker.commit(worker.delta(1))
    await worker.leave()
    ending = asyncio.create_task(until_it_ends(serving))
    for _ in range(2):  # it has looked whether to end
        await watching.receive()
    assert not ending.done()
    watching.cancel()
    await ending


async def test_finished_run_that_is_resumed_sends_its_workers_home_before_it_ends(serve: Serve, tmp_path: Path) -> None:
    """They have been started beside it, and would wait for a server that has gone."""
    await finished_run(serve, tmp_path)
    serving = await serve(commits=1, data_dir=tmp_path, resume=True, exit_when_finished=True, exit_grace=1e6)
    ending = asyncio.create_task(until_it_ends(serving))
    await serving.status()
    assert not ending.done()
    worker = await serving.joined()
    await worker.leave()
    await ending


@pytest.mark.parametrize("order", ["fifo", "round-robin"])
async def test_finished_run_that_is_resumed_lets_each_worker_pull_though_fewer_than_the_run_wants_came(
    serve: Serve, tmp_path: Path, order: str
) -> None:
    await finished_run(serve, tmp_path)
    serving = await serve(commits=1, data_dir=tmp_path, resume=True, min_workers=2, order=order)
    since = serving.server.times.finished_since
    worker = await serving.joined()
    assert worker.membership.run_state == run_pb2.RUN_STATE_FINISHED
    await worker.pull()
    await refused(worker.commit(worker.delta(1)), "RUN_FINISHED")
    second = await serving.joined()
    await second.pull()
    assert serving.server.times.finished_since == since


async def test_finished_run_that_is_resumed_ends_when_nobody_comes(serve: Serve, tmp_path: Path) -> None:
    await finished_run(serve, tmp_path)
    settings = {"commits": 1, "data_dir": tmp_path, "resume": True}
    await until_it_ends(await serve(**settings, exit_when_finished=True, exit_grace=0.01))


async def test_finished_run_that_is_resumed_says_what_to_do(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await finished_run(serve, tmp_path)
    caplog.clear()
    await serve(commits=1, data_dir=tmp_path, resume=True)
    told = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 1
    for text in (str(tmp_path), "1 commits", "--commits", "--data-dir"):
        assert text in told[0]


async def test_late_workers_are_waited_for_as_long_as_linger_says(serve: Serve) -> None:
    serving = await serve(commits=1, exit_when_finished=True, exit_linger=1e6, exit_grace=1e6)
    (worker,) = await serving.training(1)
    await worker.commit(worker.delta(1))
    await worker.leave()
    ending = asyncio.create_task(until_it_ends(serving))
    await serving.status()
    assert not ending.done()
    ending.cancel()


async def test_ready_file_is_there_from_serving_to_draining(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    serving, _, stream, _, stopping = await begin_drain(serve, ready_file=path)
    was_there = path.exists()
    await refused(serving.worker(LARGE).join(), "DRAINING")
    is_there = path.exists()
    serving.server.queue.open.set()
    await stream.outcome()
    await stopping
    assert (was_there, is_there, path.exists()) == (True, False, False)


async def test_ready_file_of_a_killed_server_is_gone_while_the_next_one_starts(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    path.write_text("left by a killed server", encoding="utf-8")
    server = Server(ServerSettings(bind="127.0.0.1:0", ready_file=path))
    starting = asyncio.create_task(server.start())
    try:
        async with asyncio.timeout(PATIENCE):
            while not server.port:
                await asyncio.sleep(0)
            assert not path.exists()
            await starting
            while not path.exists():
                await asyncio.sleep(0)
    finally:
        await server.stop()
