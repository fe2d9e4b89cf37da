"""Figures of a whole run: means over all commits, over several server processes, too; its speed and time left."""

import shutil
from pathlib import Path

import pytest
from gem_server.durability import checkpoint
from gemps.v1 import operations_pb2, status_pb2

from tests.wire.conftest import Serve
from tests.wire.refusals import PATIENCE
from tests.wire.serving import Serving
from tests.wire.worker import RawWorker


class Commits:
    """Makes commits, and remembers what each verdict said."""

    def __init__(self) -> None:
        self.verdicts: list[tuple[int, float, float, float]] = []

    async def make(self, workers: list[RawWorker], count: int) -> None:
        """So many commits of each worker in turn, of different sizes, so that no two are alike."""
        for _ in range(count):
            for worker in workers:
                said = (await worker.commit(worker.delta(len(self.verdicts)))).verdict
                seen = said.statistics
                self.verdicts.append((said.staleness, seen.mean_pi, seen.blocked_fraction, seen.clamped_fraction))

    def assert_are_in(self, status: status_pb2.RunStatus) -> None:
        means = status.means
        assert means.commits == len(self.verdicts) == status.commits
        found = (means.staleness_mean, means.mean_pi, means.blocked_fraction, means.clamped_fraction)
        expected = [sum(column) / len(self.verdicts) for column in zip(*self.verdicts, strict=True)]
        assert found == pytest.approx(expected)


async def test_means_are_over_all_commits_and_not_over_the_newest(serving: Serving) -> None:
    workers = await serving.training(3)
    made = Commits()
    assert not (await serving.status()).HasField("means")
    await made.make(workers, 3)
    await workers[1].leave()
    await made.make(workers[:1], 2)
    status = await serving.status()
    made.assert_are_in(status)
    assert status.staleness_mean != status.means.staleness_mean


@pytest.mark.parametrize("level", ["interval", "commit"])
async def test_means_go_on_after_a_restart_of_the_server(serve: Serve, tmp_path: Path, level: str) -> None:
    """At `commit` the server was killed, and what came after the checkpoint is in the log alone."""
    settings = {"durability": level, "checkpoint_interval": 0}
    made = Commits()
    folder = tmp_path / "first"
    serving = await serve(data_dir=folder, **settings)
    await made.make(await serving.training(2), 3)
    if level == "commit":
        folder = tmp_path / "as-after-kill"
        shutil.copytree(tmp_path / "first", folder, symlinks=True)
    else:
        await serving.close()
        await serving.stop()
    for _ in range(2):
        serving = await serve(data_dir=folder, resume=True, **settings)
        made.assert_are_in(await serving.status())
        await made.make(await serving.training(2), 2)
        made.assert_are_in(await serving.status())
        await serving.close()
        await serving.stop()


async def test_commits_before_a_checkpoint_without_sums_are_not_in_the_means(serve: Serve, tmp_path: Path) -> None:
    """The checkpoint is one of an earlier version, which says nothing of them."""
    serving = await serve(data_dir=tmp_path, checkpoint_interval=0)
    await Commits().make(await serving.training(1), 2)
    await serving.close()
    await serving.stop()
    saved = checkpoint.read_latest(tmp_path)
    assert saved is not None
    del saved.state["totals"]
    checkpoint.write_checkpoint(tmp_path, saved)
    serving = await serve(data_dir=tmp_path, resume=True, checkpoint_interval=0)
    assert not (await serving.status()).HasField("means")
    await Commits().make(await serving.training(1), 3)
    status = await serving.status()
    assert (status.commits, status.means.commits) == (5, 3)


async def test_figures_of_a_finished_run_do_not_change_when_workers_leave(serve: Serve) -> None:
    serving = await serve(commits=3)
    workers = await serving.training(3)
    for number, worker in enumerate(workers):
        await worker.commit(worker.delta(number), loss=float(number))
    names = ("loss", "staleness_mean", "mean_pi", "blocked_fraction", "clamped_fraction")
    found = []
    for worker in workers:
        status = await serving.status()
        found.append([getattr(status, name) for name in names])
        await worker.leave()
    status = await serving.status()
    assert [*found, [getattr(status, name) for name in names]] == [found[0]] * 4
    assert found[0][:2] == [1.0, 1.0]


async def test_a_finished_run_keeps_the_speed_that_it_ended_with(serve: Serve) -> None:
    """It is that of the last ten seconds of training, however long ago these were."""
    serving = await serve(commits=4)
    workers = await serving.training(2)
    await Commits().make(workers, 2)
    first = await serving.until(lambda status: status.commits == 4)
    later = await serving.until(lambda status: status.uptime_seconds > first.uptime_seconds + 0.2)
    assert later.commits_per_second == first.commits_per_second > 0
    assert [one.commits_per_second for one in later.workers] == [one.commits_per_second for one in first.workers]


@pytest.mark.parametrize("budget", [{"steps": 100_000}, {"commits": 100_000}, {"epochs": 1_000.0}, {}])
async def test_time_left_is_told_of_each_kind_of_budget_and_only_while_the_run_trains(
    serve: Serve, budget: dict[str, float]
) -> None:
    serving = await serve(**budget)
    (worker,) = await serving.training(1, steps_per_epoch=100)
    status = await serving.status()
    assert not status.HasField("seconds_left")
    while status.run_seconds < (60.0 if budget else 3.0) and not status.HasField("seconds_left"):
        await worker.commit(worker.delta(1))
        status = await serving.status()
    if not budget:
        assert not status.HasField("seconds_left")
        return
    assert status.seconds_left > 0
    await serving.stub.Control(
        operations_pb2.ControlRequest(action=operations_pb2.CONTROL_ACTION_FINISH), timeout=PATIENCE
    )
    await serving.until(lambda seen: not seen.HasField("seconds_left"))
