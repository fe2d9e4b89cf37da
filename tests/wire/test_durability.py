"""What each level of durability promises, as long as disks do what they should."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from gem_server.durability import checkpoint, log_format, recovery
from gem_server.errors import StartupError
from gem_server.settings import ServerSettings
from gemps.v1 import operations_pb2, run_pb2

from tests.wire.conftest import Serve
from tests.wire.model import SMALL


async def clock_on_disk(data_dir: Path) -> int:
    saved = checkpoint.read_latest(data_dir)
    return saved.clock if saved else 0


@pytest.mark.parametrize("level", ["interval", "commit"])
async def test_initialize_is_acknowledged_after_a_checkpoint(serve: Serve, tmp_path: Path, level: str) -> None:
    serving = await serve(data_dir=tmp_path, durability=level)
    worker = await serving.joined()
    await worker.initialize()
    assert await clock_on_disk(tmp_path) == 1
    saved = checkpoint.read_latest(tmp_path)
    assert saved is not None
    np.testing.assert_array_equal(saved.parameters, (await worker.pull()).values.parameters)


async def test_checkpoint_is_due_after_so_many_commits(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(data_dir=tmp_path, checkpoint_interval=0, checkpoint_commits=3)
    (worker,) = await serving.training(1)
    for seed in range(2):
        await worker.commit(worker.delta(seed))
    assert await clock_on_disk(tmp_path) == 1
    await worker.commit(worker.delta(3))
    await serving.until(lambda status: status.checkpoint.version.clock == 4)
    assert await clock_on_disk(tmp_path) == 4


async def test_without_an_interval_a_checkpoint_is_written_when_the_run_is_finished(
    serve: Serve, tmp_path: Path
) -> None:
    serving = await serve(data_dir=tmp_path, checkpoint_interval=0, commits=2)
    (worker,) = await serving.training(1)
    await worker.commit(worker.delta(1))
    assert await clock_on_disk(tmp_path) == 1
    outcome = await worker.commit(worker.delta(2))
    assert outcome.verdict.run_state == run_pb2.RUN_STATE_FINISHED
    await serving.until(lambda status: status.checkpoint.version.clock == 3)
    assert json.loads((tmp_path / "latest" / "state.json").read_text())["commits"] == 2


@pytest.mark.parametrize("level", ["interval", "commit"])
async def test_status_tells_the_level(serve: Serve, tmp_path: Path, level: str) -> None:
    serving = await serve(data_dir=tmp_path, durability=level)
    assert (await serving.status()).checkpoint.durability == level


async def test_without_a_directory_the_level_is_none(serve: Serve) -> None:
    serving = await serve()
    assert (await serving.status()).checkpoint.durability == "none"
    with pytest.raises(ValueError, match="--checkpoint-commits need --data-dir"):
        ServerSettings(checkpoint_commits=5)
    with pytest.raises(ValueError, match="--durability commit needs --data-dir"):
        ServerSettings(durability="commit")
    with pytest.raises(ValueError, match="is gone: leave out --data-dir"):
        ServerSettings(data_dir=Path("data"), durability="none")


async def test_commit_is_acknowledged_after_it_is_in_the_log(serve: Serve, tmp_path: Path) -> None:
    """A server can resume at this commit from what the directory has at the moment of the reply."""
    serving = await serve(data_dir=tmp_path, durability="commit", checkpoint_interval=0)
    workers = await serving.training(3)
    for seed in range(4):
        for worker in workers:
            outcome = await worker.commit(worker.delta(seed))
            recovered = recovery.recover(tmp_path)
            assert recovered is not None
            assert recovered.whole.clock == outcome.verdict.version.clock
            assert recovered.whole.parameters.tobytes() + recovered.whole.buffers == bytes(outcome.reply.payload)


async def test_run_goes_on_from_the_log_with_its_budget_ranks_and_eta(serve: Serve, tmp_path: Path) -> None:
    settings = {"commits": 6, "eta": 0.8, "eta_schedule": "step:2:0.5"}
    settings |= {"durability": "commit", "checkpoint_interval": 0}
    serving = await serve(data_dir=tmp_path, **settings)
    first, second = await serving.training(2)
    for seed in range(3):
        await second.commit(second.delta(seed))
    last = await first.commit(first.delta(9))
    copy = tmp_path.parent / f"{tmp_path.name}-as-after-kill"
    shutil.copytree(tmp_path, copy, symlinks=True)

    serving = await serve(data_dir=copy, resume=True, **settings)
    status = await serving.status()
    assert (status.commits, status.version.clock) == (4, 5)
    assert {w.name: (w.rank, w.commits) for w in status.workers} == {first.name: (0, 1), second.name: (1, 3)}
    assert status.next_eta == pytest.approx(0.2)
    assert bytes((await serving.read(SMALL)).payload) == bytes(last.reply.payload)
    worker = await serving.joined(name="another")
    await worker.pull()
    assert worker.membership.rank == 2
    await worker.commit(worker.delta(1))
    assert (await worker.commit(worker.delta(2))).verdict.run_state == run_pb2.RUN_STATE_FINISHED


async def test_log_of_the_version_before_is_read(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as older:
        older.setattr(log_format, "VERSION", 1)  # same fields; vectors of rules were unknown
        serving = await serve(data_dir=tmp_path, durability="commit", checkpoint_interval=0)
        (worker,) = await serving.training(1)
        outcome = await worker.commit(worker.delta(1))
    recovered = recovery.recover(tmp_path)
    assert recovered is not None
    assert (recovered.replayed, recovered.whole.clock) == (1, outcome.verdict.version.clock)
    monkeypatch.setattr(log_format, "OLDER_VERSIONS", ())
    with pytest.raises(StartupError, match="not that of a log of this version"):
        recovery.recover(tmp_path)


async def test_log_has_what_the_rule_keeps_of_the_run(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(data_dir=tmp_path, durability="commit", checkpoint_interval=0, rule="fadas")
    (worker,) = await serving.training(1)
    for seed in range(4):
        await worker.commit(worker.delta(seed))
        recovered = recovery.recover(tmp_path)
        assert recovered is not None
        assert recovered.replayed == seed + 1
        rule = serving.server.rule
        kept = [one.tobytes() for one in rule.vectors_of_run(serving.server.central.parameters)]
        assert [one.tobytes() for one in recovered.whole.rule_vectors] == kept
        assert recovered.whole.state["rule"]["scalars"] == rule.scalars_of_run


async def test_log_begins_anew_at_each_checkpoint(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(data_dir=tmp_path, durability="commit", checkpoint_interval=0)
    (worker,) = await serving.training(1)
    (before,) = (tmp_path / "log").glob("*.wal")
    await worker.commit(worker.delta(1))
    await serving.stub.Control(operations_pb2.ControlRequest(action=operations_pb2.CONTROL_ACTION_CHECKPOINT))
    (after,) = (tmp_path / "log").glob("*.wal")
    assert after != before
    outcome = await worker.commit(worker.delta(2))
    recovered = recovery.recover(tmp_path)
    assert recovered is not None
    assert (recovered.whole.clock, recovered.replayed) == (3, 1)
    assert recovered.whole.parameters.tobytes() + recovered.whole.buffers == bytes(outcome.reply.payload)


async def test_clean_stop_leaves_a_checkpoint_and_no_log(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(data_dir=tmp_path, durability="commit", checkpoint_interval=0)
    (worker,) = await serving.training(1)
    await worker.commit(worker.delta(1))
    await serving.close()
    await serving.stop()
    assert list((tmp_path / "log").iterdir()) == []
    assert await clock_on_disk(tmp_path) == 2


async def test_log_counts_also_where_the_next_server_keeps_none(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(data_dir=tmp_path, durability="commit", checkpoint_interval=0)
    (worker,) = await serving.training(1)
    outcome = await worker.commit(worker.delta(1))
    copy = tmp_path.parent / f"{tmp_path.name}-as-after-kill"
    shutil.copytree(tmp_path, copy, symlinks=True)
    serving = await serve(data_dir=copy, resume=True, durability="interval")
    assert bytes((await serving.read(SMALL)).payload) == bytes(outcome.reply.payload)
    assert await clock_on_disk(copy) == 2
    assert list((copy / "log").iterdir()) == []
