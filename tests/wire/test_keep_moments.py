"""Workers' moments over a restart (--keep-moments): bit for bit, for those that come back, and not for ever."""

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest
from gem_server.durability import checkpoint, recovery
from gem_server.durability.files import Files
from gem_server.errors import StartupError
from gem_server.flow.calls import Call
from gem_server.flow.requests import CutRequest
from gem_server.settings import ServerSettings

from gem_trace import replay
from tests.faults.test_disks import serving_on
from tests.wire.conftest import Serve
from tests.wire.model import LARGE, SMALL, Model, Values
from tests.wire.oracle import Oracle
from tests.wire.refusals import refused
from tests.wire.serving import Serving
from tests.wire.test_resume import CHECKPOINT, moved
from tests.wire.worker import RawWorker

ETA = 0.05
RULES = [("gem", "none"), ("gem", "averaged-rms"), ("dc-asgd", "none")]


async def as_after_a_kill(serve: Serve, serving: Serving, data_dir: Path, **settings: object) -> Serving:
    """A server on what is on the disk at this moment."""
    copy = data_dir.parent / f"{data_dir.name}-killed"
    shutil.copytree(data_dir, copy, symlinks=True)
    await serving.close()
    return await serve(data_dir=copy, resume=True, **settings)


async def back(workers: list[RawWorker], serving: Serving, oracle: Oracle) -> list[RawWorker]:
    """The workers at the server that came back; for the oracle they only pull."""
    returned = [moved(worker, serving) for worker in workers]
    for worker in returned:
        await worker.join()
        await worker.pull()
        oracle.pull(worker.name)
    return returned


async def training(
    serving: Serving, count: int, model: Model = SMALL, rule: str = "gem", precondition: str = "none"
) -> tuple[list[RawWorker], Oracle]:
    """Workers that hold the first parameters, and an oracle that does."""
    workers = await serving.training(count, model)
    oracle = Oracle(await serving.values(model), rule, precondition)
    for worker in workers:
        oracle.pull(worker.name)
    return workers, oracle


async def train(workers: list[RawWorker], oracle: Oracle, order: list[int], first_seed: int = 0) -> None:
    for seed, number in enumerate(order, first_seed):
        worker = workers[number]
        delta = worker.delta(seed)
        outcome = await worker.commit(delta)
        oracle.commit(worker.name, delta.parameters, ETA)
        np.testing.assert_array_equal(outcome.reply.values.parameters, oracle.held(worker.name))


@pytest.mark.parametrize("model", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize(("rule", "precondition"), RULES)
@pytest.mark.parametrize("durability", ["interval", "commit"])
async def test_workers_go_on_with_their_moments_after_a_kill(
    serve: Serve, tmp_path: Path, model: Model, rule: str, precondition: str, durability: str
) -> None:
    settings = {"rule": rule, "precondition": precondition, "durability": durability, "eta": ETA, "keep_moments": True}
    serving = await serve(data_dir=tmp_path / "data", **settings)
    assert (await serving.status()).checkpoint.keep_moments
    workers, oracle = await training(serving, 3, model, rule, precondition)
    await train(workers, oracle, [0, 1, 2, 0, 0, 1, 2])
    if durability == "interval":
        await serving.stub.Control(CHECKPOINT)
    serving = await as_after_a_kill(serve, serving, tmp_path / "data", **settings)
    workers = await back(workers, serving, oracle)
    await train(workers, oracle, [2, 1, 0, 0, 1, 2], first_seed=7)
    np.testing.assert_array_equal((await serving.values(model)).parameters, oracle.parameters)


async def test_moments_outlive_a_restart_that_their_worker_missed_and_a_clean_stop(
    serve: Serve, tmp_path: Path
) -> None:
    settings = {"durability": "commit", "keep_moments": True}
    serving = await serve(data_dir=tmp_path, **settings)
    workers, oracle = await training(serving, 2)
    await train(workers, oracle, [0, 1, 0, 1])
    for seed in (4, 5):
        await serving.close()
        await serving.stop()
        serving = await serve(data_dir=tmp_path, resume=True, **settings)
        workers[:1] = await back(workers[:1], serving, oracle)
        await train(workers, oracle, [0], first_seed=seed)
    workers[1:] = await back(workers[1:], serving, oracle)
    await train(workers, oracle, [1, 0, 1], first_seed=6)


async def test_the_log_holds_the_moments_of_all_that_committed_in_a_group(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(data_dir=tmp_path, durability="commit", keep_moments=True, checkpoint_interval=0)
    workers = await serving.training(5)
    for seed in range(6):
        await asyncio.gather(*(worker.commit(worker.delta(10 * seed + i)) for i, worker in enumerate(workers)))
        recovered = recovery.recover(tmp_path)
        assert recovered is not None
        live = {one.worker.name: one.held.moments for one in serving.server.sessions.live()}
        assert recovered.whole.moments.keys() == live.keys()
        for name, (moment,) in live.items():
            np.testing.assert_array_equal(recovered.whole.moments[name][0], moment)


async def test_an_overlapping_worker_does_not_change_what_the_log_writes(serve: Serve, tmp_path: Path) -> None:
    settings = {"durability": "commit", "keep_moments": True, "checkpoint_interval": 0}
    serving = await serve(data_dir=tmp_path, **settings)
    (worker,) = await serving.training(1, LARGE, overlap=True)
    for seed in range(8):
        await worker.commit(worker.delta(seed))
        recovered = recovery.recover(tmp_path)
        assert recovered is not None
        (session,) = serving.server.sessions.live()
        np.testing.assert_array_equal(recovered.whole.moments[worker.name][0], session.held.moments[0])


async def test_a_checkpoint_holds_those_of_joined_workers_only(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(data_dir=tmp_path, keep_moments=True)
    workers = await serving.training(3)
    for worker in workers:
        await worker.commit(worker.delta(1))
    await workers[1].leave()
    await serving.stub.Control(CHECKPOINT)
    saved = checkpoint.read_latest(tmp_path)
    assert saved is not None
    assert sorted(saved.moments) == [workers[0].name, workers[2].name]
    bytes_of_moments = (tmp_path / "latest" / checkpoint.WORKERS_FILE).stat().st_size
    assert 0 <= bytes_of_moments - 2 * 4 * SMALL.parameter_count < 1024


async def test_a_cut_copies_moments_when_their_worker_commits_and_only_until_it_is_written(
    serve: Serve, tmp_path: Path
) -> None:
    serving = await serve(data_dir=tmp_path, keep_moments=True)
    workers, oracle = await training(serving, 2)
    await train(workers, oracle, [0, 1])
    applier = serving.server.applier
    request = CutRequest(None, Call(), dict, with_moments=True)
    applier.submit(request)
    _, reader, rule = await request.done
    before = {name: moment.copy() for name, (moment,) in rule.moments.items()}
    assert {name: id(moment) for name, (moment,) in applier.moments().items()} == {
        name: id(moment) for name, (moment,) in rule.moments.items()
    }
    await train(workers, oracle, [0, 0], first_seed=2)
    for name, (moment,) in rule.moments.items():
        np.testing.assert_array_equal(moment, before[name])
    (changed,), (same,) = (applier.moments()[worker.name] for worker in workers)
    assert same is rule.moments[workers[1].name][0]
    assert not np.array_equal(changed, before[workers[0].name])
    applier.end_cut()
    reader.close()
    await train(workers, oracle, [1, 0], first_seed=4)
    assert applier.moments()[workers[1].name][0] is same
    assert applier.moments()[workers[0].name][0] is changed


class TightDisk(Files):
    free: int | None = None

    def free_bytes(self, directory: Path) -> int:
        return super().free_bytes(directory) if self.free is None else self.free


async def test_a_checkpoint_goes_without_moments_if_there_is_room_for_no_more_and_the_log_has_them_again(
    serve: Serve, tmp_path: Path
) -> None:
    settings = {"durability": "commit", "keep_moments": True, "checkpoint_interval": 0}
    data_dir, disk = tmp_path / "data", TightDisk()
    async with serving_on(data_dir, disk, **settings) as serving:
        workers, oracle = await training(serving, 5)
        await train(workers, oracle, [0, 1, 2, 3, 4])
        disk.free = (data_dir / "log" / "reserve").stat().st_size
        await serving.stub.Control(CHECKPOINT)
        saved = checkpoint.read_latest(data_dir)
        assert saved is not None
        assert (saved.clock, saved.moments) == (6, {})
        await train(workers, oracle, [0, 1, 2, 3, 4, 0], first_seed=5)
        killed = shutil.copytree(data_dir, tmp_path / "killed", symlinks=True)
    serving = await serve(data_dir=killed, resume=True, **settings)
    workers = await back(workers, serving, oracle)
    await train(workers, oracle, [4, 3, 2, 1, 0], first_seed=11)


async def test_moments_that_nobody_claims_end_with_the_session_timeout(serve: Serve, tmp_path: Path) -> None:
    settings = {"data_dir": tmp_path, "keep_moments": True}
    serving = await serve(**settings)
    workers, oracle = await training(serving, 2)
    await train(workers, oracle, [0, 1, 0, 1])
    await serving.close()
    await serving.stop()
    serving = await serve(resume=True, **settings)
    workers[:1] = await back(workers[:1], serving, oracle)
    sessions = serving.server.sessions
    sessions.expire(0.0)
    sessions.expire(sessions.timeout)
    late = moved(workers[1], serving)
    await late.join()
    await late.pull()
    oracle.leave(late.name)
    oracle.pull(late.name)
    await train([workers[0], late], oracle, [1, 0, 1], first_seed=9)


async def test_restored_moments_count_as_memory_until_their_worker_has_them(serve: Serve, tmp_path: Path) -> None:
    settings = {"data_dir": tmp_path, "keep_moments": True}
    serving = await serve(**settings)
    workers, oracle = await training(serving, 3)
    await train(workers, oracle, [0, 1, 2])
    await serving.close()
    await serving.stop()
    serving = await serve(resume=True, **settings)
    memory, vector = serving.server.memory, 4 * SMALL.parameter_count
    layout = serving.server.central.layout
    assert layout is not None
    worker = memory.worker_bytes(layout) + layout.object_bytes
    empty = memory.reserved - 3 * vector
    assert empty == memory.model_bytes(layout)
    workers[0] = moved(workers[0], serving)
    await workers[0].join()
    assert memory.reserved == empty + 2 * vector + worker
    await workers[0].pull()
    assert memory.reserved == empty + 2 * vector + worker
    sessions = serving.server.sessions
    sessions.expire(0.0)
    sessions.expire(sessions.timeout)
    assert memory.reserved == empty + worker


async def test_restored_moments_keep_out_strangers_and_not_their_workers(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(data_dir=tmp_path, keep_moments=True)
    workers, oracle = await training(serving, 2)
    await train(workers, oracle, [0, 1])
    limit = serving.server.memory.reserved
    await serving.close()
    await serving.stop()
    serving = await serve(data_dir=tmp_path, resume=True, keep_moments=True, memory_limit=limit)
    stranger = serving.worker(name="stranger")
    await serving.joined(name=workers[0].name)
    assert (await refused(stranger.join(), "MEMORY")).retry_after is not None
    workers = await back(workers, serving, oracle)
    await train(workers, oracle, [0, 1], first_seed=2)


async def test_a_worker_that_joins_again_without_a_restart_begins_at_0(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(data_dir=tmp_path, keep_moments=True)
    (worker,), oracle = await training(serving, 1)
    await train([worker], oracle, [0, 0])
    again = await serving.joined(name=worker.name)
    await again.pull()
    oracle.leave(worker.name)
    oracle.pull(worker.name)
    await train([again], oracle, [0, 0], first_seed=2)


async def test_without_the_setting_what_was_kept_is_left_alone(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(data_dir=tmp_path, keep_moments=True)
    (worker,), oracle = await training(serving, 1)
    await train([worker], oracle, [0, 0])
    await serving.close()
    await serving.stop()
    recovered = recovery.recover(tmp_path, with_moments=False)
    assert recovered is not None
    assert not recovered.whole.moments
    serving = await serve(data_dir=tmp_path, resume=True)
    oracle.leave(worker.name)
    (worker,) = await back([worker], serving, oracle)
    await train([worker], oracle, [0], first_seed=2)
    await serving.stub.Control(CHECKPOINT)
    assert not (tmp_path / "latest" / checkpoint.WORKERS_FILE).exists()


@pytest.mark.parametrize("durability", ["interval", "commit"])
async def test_a_trace_goes_on_over_the_restart(serve: Serve, tmp_path: Path, durability: str) -> None:
    settings = {"durability": durability, "record": tmp_path / "run.trace", "keep_moments": True}
    serving = await serve(data_dir=tmp_path / "data", **settings)
    workers, oracle = await training(serving, 2)
    await train(workers, oracle, [0, 1, 0, 1])
    await serving.close()
    await serving.stop()
    serving = await serve(data_dir=tmp_path / "data", resume=True, **settings)
    workers = await back(workers, serving, oracle)
    await train(workers, oracle, [1, 0, 1, 0], first_seed=4)
    await serving.close()
    await serving.stop()
    found = replay(tmp_path / "run.trace")
    np.testing.assert_array_equal(found.parameters, oracle.parameters)
    assert (found.compared_starts, found.compared_end, found.resets) == (1, True, 0)


@pytest.mark.parametrize("rule", ["downpour", "gap-aware", "dana", "easgd", "delayed-nesterov"])
async def test_rules_that_have_nothing_to_go_on_with_are_refused(serve: Serve, tmp_path: Path, rule: str) -> None:
    with pytest.raises(StartupError, match=f"rule '{rule}' has no vectors of a worker .*: leave out --keep-moments"):
        await serve(rule=rule, data_dir=tmp_path, keep_moments=True)


def test_moments_need_a_directory() -> None:
    with pytest.raises(ValueError, match="--keep-moments needs --data-dir"):
        ServerSettings(keep_moments=True)


async def test_a_checkpoint_of_a_worker_without_parameters_has_nothing_to_hold(serve: Serve, tmp_path: Path) -> None:
    empty = Model(SMALL.tensors[2:4])
    serving = await serve(data_dir=tmp_path, durability="commit", keep_moments=True)
    (worker,) = await serving.training(1, empty)
    await worker.commit(Values(np.empty(0, np.float32), worker.delta(1).rest))
    await serving.close()
    await serving.stop()
    serving = await serve(data_dir=tmp_path, resume=True, durability="commit", keep_moments=True)
    worker = moved(worker, serving)
    await worker.join()
    await worker.pull()
    await worker.commit(Values(np.empty(0, np.float32), worker.delta(2).rest))
