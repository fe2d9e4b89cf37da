"""Disks that lose power, are full, or fail: what was promised holds, and a server that can promise nothing says so."""

import asyncio
import errno
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from gem_server.durability import checkpointer, recovery
from gem_server.durability.files import Files, StorageError
from gem_server.server import Server
from gemps.v1 import operations_pb2, parameters_pb2, run_pb2, status_pb2

from tests.faults.disks import FailingDisk, ForgetfulDisk
from tests.faults.history import Deltas, History
from tests.faults.load import LoggedWorker
from tests.faults.processes import count
from tests.figures import Figures
from tests.server_settings import server_settings
from tests.wire.model import LARGE, SMALL, Model
from tests.wire.refusals import refused
from tests.wire.serving import Serving
from tests.wire.worker import all_of

CHECKPOINT = operations_pb2.ControlRequest(action=operations_pb2.CONTROL_ACTION_CHECKPOINT)
# Between two losses of power.
POWER_SECONDS = (0.02, 0.15)


@asynccontextmanager
async def serving_on(data_dir: Path, files: Files, **settings: Any) -> AsyncIterator[Serving]:
    told = {"bind": "127.0.0.1:0", "durability": "commit", "data_dir": data_dir, "resume": True} | settings
    server = Server(server_settings(**told), files=files)
    serving = Serving(server, await server.start())
    try:
        yield serving
    finally:
        await serving.close()
        try:
            await serving.stop()
        except StorageError:
            assert isinstance(files, FailingDisk)


@pytest.mark.parametrize(
    ("level", "model"),
    [("commit", SMALL), ("commit", LARGE), ("interval", SMALL)],
    ids=["commit, small", "commit, large", "interval"],
)
async def test_power_lost_at_any_moment_costs_no_more_than_the_level_says(
    tmp_path: Path, level: str, model: Model, figures: Figures
) -> None:
    """The disk forgets all that was not synced. Taken again and again under load, and each time recovered from.

    At `commit` nothing that was acknowledged is lost; at `interval` no checkpoint that the server has told of.
    """
    history = History(model, model.random_values(0))
    workers = [
        LoggedWorker(f"worker-{number}", model, history, itertools.count(100_000 * number)) for number in range(4)
    ]
    data_dir = tmp_path / "live"
    data_dir.mkdir()
    disk = ForgetfulDisk(data_dir)
    draw = random.Random(3)
    losses = count(10, 200)
    seen: list[tuple[int, int, Path]] = []
    async with serving_on(data_dir, disk, durability=level, checkpoint_interval=0.2) as serving:
        await workers[0].connect(serving.address)
        await all_of(*(worker.connect(serving.address) for worker in workers[1:]))
        training = [asyncio.create_task(worker.train()) for worker in workers]
        for number in range(losses):
            await asyncio.sleep(draw.uniform(*POWER_SECONDS))
            acknowledged = max((commit.clock for commit in history.commits), default=1)
            kept = acknowledged if level == "commit" else (await serving.status()).checkpoint.version.clock
            seen.append((kept, acknowledged, disk.after_power_loss(tmp_path / f"lost-{number}")))
        for worker in workers:
            worker.stopped = True
        await all_of(*training)
        for worker in workers:
            await worker.close()
    disk.close_all()
    states = history.states(Deltas(model))
    ahead = behind = 0
    for kept, acknowledged, left in seen:
        recovered = recovery.recover(left)
        assert recovered is not None
        whole = recovered.whole
        assert whole.clock >= kept, "what was promised to be kept is lost"
        ahead, behind = max(ahead, whole.clock - acknowledged), max(behind, acknowledged - whole.clock)
        assert whole.state["commits"] == whole.clock - 1
        if whole.clock in states:
            assert whole.parameters.tobytes() + whole.buffers == states[whole.clock]
    kept, _, left = seen[-1]
    async with serving_on(left, Files(), durability=level) as serving:
        assert (await serving.status()).version.clock >= kept
    figures(
        f"power lost, {level}, {model.parameter_count} parameters",
        f"{losses} times in {len(history.commits)} commits, at most {behind} acknowledged lost at once, at most "
        f"{ahead} unacknowledged kept, parameters bit-equal",
    )


async def test_power_lost_before_the_first_checkpoint_leaves_nothing_and_no_obstacle(tmp_path: Path) -> None:
    data_dir = tmp_path / "live"
    data_dir.mkdir()
    disk = ForgetfulDisk(data_dir)
    async with serving_on(data_dir, disk) as serving:
        worker = await serving.joined()
        left = disk.after_power_loss(tmp_path / "before")
        await worker.initialize()
        after = disk.after_power_loss(tmp_path / "after")
    disk.close_all()
    assert recovery.recover(left) is None
    recovered = recovery.recover(after)
    assert recovered is not None
    assert recovered.whole.clock == 1


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
async def test_full_disk_refuses_commits_serves_pulls_and_recovers_by_itself(tmp_path: Path, error: int) -> None:
    disk = FailingDisk(error)
    async with serving_on(tmp_path, disk, checkpoint_interval=0) as serving:
        (worker,) = await serving.training(1, LARGE)
        disk.failing = {"allocate"}
        applied = 0
        commit = worker.prepare(worker.delta(0))
        for seed in range(1000):
            commit = worker.prepare(worker.delta(seed))
            stream = worker.commit_stream()
            try:
                await stream.send_commit(commit)
                await stream.outcome()
            except Exception:
                break
            applied += 1
        else:
            raise AssertionError("the room that was set aside never ended")
        before = await serving.central(LARGE)
        for _ in range(3):
            refusal = await refused(worker.commit_on_new_stream(commit), "STORAGE_FULL")
            assert refusal.retry_after is not None
            await worker.pull()
            commit = worker.prepare(worker.delta(applied))
        assert await serving.central(LARGE) == before
        assert (await serving.status()).commits == applied
        assert (await serving.status()).run_state == run_pb2.RUN_STATE_TRAINING
        await refused(serving.stub.Control(CHECKPOINT), "STORAGE_FULL")
        disk.failing = set()
        outcome = await worker.commit_on_new_stream(commit)
        assert outcome.verdict.sequence == applied + 1
        recovered = recovery.recover(tmp_path)
        assert recovered is not None
        assert recovered.whole.parameters.tobytes() == outcome.reply.values.parameters.tobytes()
        await serving.stub.Control(CHECKPOINT)
        await serving.next_commit_works(worker)


async def test_initialize_on_a_full_disk_is_refused_until_there_is_room(tmp_path: Path) -> None:
    disk = FailingDisk(errno.ENOSPC)
    async with serving_on(tmp_path, disk) as serving:
        worker = await serving.joined()
        disk.failing = {"allocate", "sync"}
        await refused(worker.initialize(), "STORAGE_FULL")
        disk.failing = set()
        # It is tried again by itself; the pull is answered when it is there.
        transfer = await worker.pull()
        assert transfer.clock == 1
        recovered = recovery.recover(tmp_path)
        assert recovered is not None
        assert recovered.whole.parameters.tobytes() == transfer.values.parameters.tobytes()


@pytest.mark.parametrize("level", ["interval", "commit"])
async def test_nobody_trains_on_first_parameters_that_are_not_on_disk(
    tmp_path: Path, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither who tries again, nor who joins later, nor who only reads."""
    disk = FailingDisk(errno.ENOSPC)
    async with serving_on(tmp_path, disk, durability=level) as serving:
        first = await serving.joined()
        disk.failing = {"allocate", "sync"}
        await refused(first.initialize(), "STORAGE_FULL")
        later = await serving.joined()
        assert later.membership.has_parameters
        attempts = (first.initialize(), later.initialize(), first.pull(), later.pull(), serving.read(SMALL))
        await asyncio.gather(*(refused(attempt, "STORAGE_FULL") for attempt in attempts))
        serving.server.problem_watch.look()
        (problem,) = [one for one in (await serving.status()).problems if one.kind == "checkpoint-failed"]
        assert problem.severity == status_pb2.PROBLEM_SEVERITY_CRITICAL
        assert "no worker trains" in problem.text
        assert "there is none yet" in caplog.text
        assert "stands" not in caplog.text
        disk.failing = set()
        assert (await first.initialize()).outcome == parameters_pb2.INITIALIZE_OUTCOME_ALREADY_INITIALIZED
        transfer = await later.pull()
        recovered = recovery.recover(tmp_path)
        assert recovered is not None
        assert recovered.whole.parameters.tobytes() == transfer.values.parameters.tobytes()
        await later.commit(later.delta(1))
        serving.server.problem_watch.look()
        assert "checkpoint-failed" not in {one.kind for one in (await serving.status()).problems}


async def test_a_disk_that_stays_full_is_logged_once_and_again_after_it_had_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Attempts come every two seconds, and a line for each would fill the log of a run over night."""
    monkeypatch.setattr(checkpointer, "RETRY_SECONDS", 0.01)

    def reports() -> int:
        return sum(getattr(record, "event", "") == "no-checkpoint" for record in caplog.records)

    disk = CountingDisk(errno.ENOSPC)
    async with serving_on(tmp_path, disk, durability="interval") as serving:
        (worker,) = await serving.training(1)
        for times in (1, 2):
            disk.failing = {"allocate", "sync"}
            before = disk.failures
            await worker.commit(worker.delta(times))
            serving.server.persistence.soon()
            while disk.failures < before + 10:
                await asyncio.sleep(0.01)
            assert reports() == times
            disk.failing = set()
            await serving.stub.Control(CHECKPOINT)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("interval", "--resume continues from clock 2, and the 3 commits after it are lost"),
        ("commit", "no acknowledged commit is lost, because the log has them: start with --resume"),
    ],
)
async def test_what_is_lost_if_the_last_checkpoint_finds_no_room(tmp_path: Path, level: str, expected: str) -> None:
    disk = FailingDisk(errno.ENOSPC)
    async with serving_on(tmp_path, disk, durability=level) as serving:
        (worker,) = await serving.training(1)
        await worker.commit(worker.delta(0))
        await serving.stub.Control(CHECKPOINT)
        for seed in (1, 2, 3):
            await worker.commit(worker.delta(seed))
        disk.failing = {"allocate", "sync"}
        await serving.close()
        with pytest.raises(OSError, match="No space left on device"):
            await serving.server.stop()
        assert serving.server.persistence.describe_unsaved() == expected
    recovered = recovery.recover(tmp_path)
    assert recovered is not None
    assert recovered.whole.clock == (2 if level == "interval" else 5)


class CountingDisk(FailingDisk):
    failures = 0

    def _maybe(self, what: str) -> None:
        self.failures += what in self.failing
        super()._maybe(what)


@pytest.mark.parametrize("what", ["write", "sync", "allocate"])
async def test_failing_disk_ends_the_server_and_nothing_is_acknowledged_after_it(
    tmp_path: Path, what: str, figures: Figures
) -> None:
    disk = FailingDisk()
    async with serving_on(tmp_path, disk, checkpoint_interval=0) as serving:
        workers = await serving.training(2, LARGE)
        acknowledged = [(await worker.commit(worker.delta(1))).verdict.version.clock for worker in workers]
        disk.failing = {what}
        told = await asyncio.gather(*(commit_until_refused(worker) for worker in workers))
        assert {code for code, _ in told} <= {"UNAVAILABLE", "CANCELLED"}
        with pytest.raises(StorageError, match="Input/output error"):
            await asyncio.wait_for(serving.server.wait_until_done(), 10)
        disk.failing = set()
        recovered = recovery.recover(tmp_path)
        assert recovered is not None
        assert recovered.whole.clock >= max([*acknowledged, *(clock for _, clock in told)])
        figures(f"EIO: {what}", "the server ends, nothing is acknowledged after it, all that was is there: 0 lost")


async def commit_until_refused(worker: Any) -> tuple[str, int]:
    """The status that ended it, and the clock of the last acknowledged commit."""
    clock = 0
    for seed in range(1000):
        stream = worker.commit_stream()
        try:
            await stream.send_commit(worker.prepare(worker.delta(seed)))
            clock = (await stream.outcome()).verdict.version.clock
        except Exception as error:
            return error.code().name, clock  # type: ignore[attr-defined]
    raise AssertionError("a disk that fails was never noticed")


@pytest.mark.parametrize("level", ["interval", "commit"])
async def test_checkpoint_that_fails_for_another_reason_than_room_ends_the_server(tmp_path: Path, level: str) -> None:
    disk = FailingDisk()
    async with serving_on(tmp_path, disk, durability=level, checkpoint_interval=0) as serving:
        (worker,) = await serving.training(1)
        await worker.commit(worker.delta(1))
        disk.failing = {"sync"}
        await refused(serving.stub.Control(CHECKPOINT), "DRAINING")
        with pytest.raises(StorageError, match="Input/output error"):
            await asyncio.wait_for(serving.server.wait_until_done(), 10)
