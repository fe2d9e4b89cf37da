"""What each level of durability promises, as long as disks do what they should."""

import json
from pathlib import Path

import numpy as np
import pytest
from gem_server.durability import checkpoint
from gem_server.settings import ServerSettings
from gemps.v1 import run_pb2

from tests.wire.conftest import Serve


async def clock_on_disk(data_dir: Path) -> int:
    saved = checkpoint.read_latest(data_dir)
    return saved.clock if saved else 0


@pytest.mark.parametrize(("level", "clock"), [("none", 0), ("interval", 1)])
async def test_initialize_is_acknowledged_after_a_checkpoint(
    serve: Serve, tmp_path: Path, level: str, clock: int
) -> None:
    serving = await serve(data_dir=tmp_path, durability=level)
    worker = await serving.joined()
    await worker.initialize()
    assert await clock_on_disk(tmp_path) == clock
    saved = checkpoint.read_latest(tmp_path)
    if saved is not None:
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


async def test_level_none_writes_when_the_run_is_finished(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(data_dir=tmp_path, durability="none", commits=2)
    (worker,) = await serving.training(1)
    await worker.commit(worker.delta(1))
    assert await clock_on_disk(tmp_path) == 0
    outcome = await worker.commit(worker.delta(2))
    assert outcome.verdict.run_state == run_pb2.RUN_STATE_FINISHED
    await serving.until(lambda status: status.checkpoint.version.clock == 3)
    assert json.loads((tmp_path / "latest" / "state.json").read_text())["commits"] == 2


@pytest.mark.parametrize("level", ["none", "interval"])
async def test_status_tells_the_level(serve: Serve, tmp_path: Path, level: str) -> None:
    serving = await serve(data_dir=tmp_path, durability=level)
    assert (await serving.status()).checkpoint.durability == level


async def test_without_a_directory_the_level_is_none(serve: Serve) -> None:
    serving = await serve()
    assert (await serving.status()).checkpoint.durability == "none"
    with pytest.raises(ValueError, match="--checkpoint-commits need --data-dir"):
        ServerSettings(checkpoint_commits=5)
