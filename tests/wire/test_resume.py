"""Checkpoint and resume, through the wire: what goes on after a restart, and what must not."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gem_server.errors import StartupError
from gemps.v1 import operations_pb2, run_pb2
from safetensors.numpy import load_file

from gem_core import UpdateRule
from tests.waiting import eventually_async
from tests.wire.conftest import Serve
from tests.wire.model import LARGE, SMALL
from tests.wire.oracle import Oracle
from tests.wire.refusals import refused
from tests.wire.serving import Serving
from tests.wire.worker import RawWorker

CHECKPOINT = operations_pb2.ControlRequest(action=operations_pb2.CONTROL_ACTION_CHECKPOINT)


async def restart(serve: Serve, serving: Serving, data_dir: Path, **settings: object) -> Serving:
    await serving.close()
    await serving.stop()
    return await serve(data_dir=data_dir, resume=True, **settings)


def moved(worker: RawWorker, serving: Serving) -> RawWorker:
    """Return the same worker, with its session id, connected to the restarted server."""
    worker.address = serving.address
    worker.membership.lane_port = 0
    return serving.adopt(worker.twin(worker.session_id))


async def test_version_budget_schedule_and_ledger_go_on_after_a_stop(serve: Serve, tmp_path: Path) -> None:
    settings = {"commits": 6, "eta": 0.8, "eta_schedule": "step:2:0.5"}
    serving = await serve(data_dir=tmp_path, **settings)
    worker, other = await serving.training(2)
    for seed in range(3):
        await worker.commit(worker.delta(seed))
    await other.commit(other.delta(3))
    before = await serving.read(SMALL)

    serving = await restart(serve, serving, tmp_path, **settings)
    status = await serving.status()
    assert status.commits == 4
    assert status.version.clock == before.clock == 5
    assert status.version.incarnation != before.version.incarnation
    after = await serving.read(SMALL)
    assert bytes(after.payload) == bytes(before.payload)
    assert {w.name: w.commits for w in status.workers} == {worker.name: 3, other.name: 1}
    back = moved(worker, serving)
    answer = await back.join()
    assert answer.has_parameters
    assert (answer.last_applied_sequence, answer.rank) == (3, 0)
    assert answer.next_eta == pytest.approx(0.2)
    await back.pull()
    assert (await back.commit(back.delta(9))).verdict.next_eta == pytest.approx(0.2)
    outcome = await back.commit(back.delta(10))
    assert outcome.verdict.sequence == 5
    assert outcome.verdict.version.clock == 7
    assert outcome.verdict.run_state == run_pb2.RUN_STATE_FINISHED


@pytest.mark.parametrize("durability", ["interval", "commit"])
async def test_cosine_over_the_workers_steps_goes_on_after_a_restart(
    serve: Serve, tmp_path: Path, durability: str
) -> None:
    settings = {"steps": 4, "eta": 0.8, "eta_schedule": "cosine", "durability": durability}
    serving = await serve(data_dir=tmp_path, **settings)
    first, second = await serving.training(2)
    for seed in range(2):
        await first.commit(first.delta(seed))
        await second.commit(second.delta(seed))
    assert (await serving.status()).next_eta == pytest.approx(0.4)
    serving = await restart(serve, serving, tmp_path, **settings)
    assert (await serving.status()).next_eta == pytest.approx(0.4)
    assert (await moved(second, serving).join()).next_eta == pytest.approx(0.4)


async def test_commit_retried_across_stop_and_start_counts_once(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(data_dir=tmp_path)
    (worker,) = await serving.training(1)
    commit = worker.prepare(worker.delta(1))
    original = await worker.commit_on_new_stream(commit)

    serving = await restart(serve, serving, tmp_path)
    back = moved(worker, serving)
    assert (await back.join()).last_applied_sequence == 1
    repeat = await back.commit_stream().outcome_of_repeat(commit)
    assert repeat.verdict.duplicate
    assert repeat.verdict.version == original.verdict.version
    assert repeat.verdict.staleness == original.verdict.staleness
    assert repeat.verdict.statistics == original.verdict.statistics
    np.testing.assert_array_equal(repeat.reply.values.parameters, original.reply.values.parameters)
    assert (await serving.status()).commits == 1
    await back.pull()
    await serving.next_commit_works(back)


async def test_repeat_with_other_content_is_refused_after_a_restart_too(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(data_dir=tmp_path)
    (worker,) = await serving.training(1)
    await worker.commit(worker.delta(1))
    serving = await restart(serve, serving, tmp_path)
    back = moved(worker, serving)
    await back.join()
    await back.pull()
    await serving.refuses(back, back.prepare(back.delta(2), sequence=1).repeated(), "SEQUENCE_REUSED")


async def test_session_of_before_the_restart_has_to_join_again(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(data_dir=tmp_path)
    (worker,) = await serving.training(1)
    await worker.commit(worker.delta(1))
    serving = await restart(serve, serving, tmp_path)
    back = moved(worker, serving)
    for call in (back.heartbeat(), back.pull(), back.commit_on_new_stream(back.prepare(back.delta(2)))):
        await refused(call, "UNKNOWN_SESSION")


@pytest.mark.parametrize("pulled", [False, True])
async def test_base_version_of_before_the_restart_is_refused(serve: Serve, tmp_path: Path, pulled: bool) -> None:
    """A burst of old gradients after a restart cannot act like DOWNPOUR: clock 2 then is not clock 2 now."""
    serving = await serve(data_dir=tmp_path)
    (worker,) = await serving.training(1)
    old = (await worker.commit(worker.delta(1))).verdict.version
    serving = await restart(serve, serving, tmp_path)
    back = moved(worker, serving)
    await back.join()
    if pulled:
        await back.pull()
    assert (await serving.status()).version.clock == old.clock
    before = await serving.central(SMALL)
    commit = back.prepare(back.delta(2), base_version=old)
    await refused(back.commit_on_new_stream(commit), "UNKNOWN_INCARNATION")
    assert await serving.central(SMALL) == before
    await back.pull()
    await serving.next_commit_works(back)


async def test_moment_starts_anew_after_a_restart(serve: Serve, tmp_path: Path) -> None:
    """After a restart the moment is 0, and workers pull anew, as JoinResponse.incarnation says."""
    serving = await serve(data_dir=tmp_path)
    (worker,) = await serving.training(1)
    for seed in range(3):
        await worker.commit(worker.delta(seed))
    serving = await restart(serve, serving, tmp_path)
    back = moved(worker, serving)
    await back.join()
    oracle = Oracle((await back.pull()).values)
    oracle.pull(back.name)
    for seed in range(3):
        delta = back.delta(seed)
        await back.commit(delta)
        oracle.commit(back.name, delta.parameters)
    np.testing.assert_array_equal((await serving.values()).parameters, oracle.parameters)


@pytest.mark.parametrize("durability", ["interval", "commit"])
@pytest.mark.parametrize(
    "rule", ["gap-aware", "delayed-nesterov", "dana", "fedbuff", "fadas", "ace", "ormo", "ringmaster-lmo"]
)
async def test_what_the_rule_keeps_of_the_run_goes_on_after_a_restart(
    serve: Serve, tmp_path: Path, rule: str, durability: str
) -> None:
    settings = {"rule": rule, "durability": durability, "eta": 0.05}
    serving = await serve(data_dir=tmp_path, **settings)
    (worker,) = await serving.training(1)
    oracle = Oracle(await serving.values(), rule)
    oracle.pull(worker.name)
    for seed in range(6):
        delta = worker.delta(seed)
        await worker.commit(delta)
        oracle.commit(worker.name, delta.parameters, 0.05)
    serving = await restart(serve, serving, tmp_path, **settings)
    back = moved(worker, serving)
    await back.join()
    await back.pull()
    oracle.leave(back.name)  # its own vectors begin at 0
    oracle.pull(back.name)
    for seed in range(6, 9):
        delta = back.delta(seed)
        await back.commit(delta)
        oracle.commit(back.name, delta.parameters, 0.05)
    np.testing.assert_array_equal((await serving.values()).parameters, oracle.parameters)


@pytest.mark.parametrize("rule", ["gem", "downpour", "adaptive-staleness"])
@pytest.mark.parametrize("durability", ["interval", "commit"])
async def test_weight_decay_has_the_eta_of_each_commit_and_goes_on_after_a_restart(
    serve: Serve, tmp_path: Path, rule: str, durability: str
) -> None:
    settings = {"rule": rule, "weight_decay": 0.5, "durability": durability}
    settings |= {"eta": 0.8, "eta_schedule": "step:2:0.7"}
    serving = await serve(data_dir=tmp_path, **settings)
    (worker,) = await serving.training(1)
    layout = serving.server.central.layout
    oracle = Oracle(await serving.values(), rule, layout, weight_decay=0.5)
    oracle.pull(worker.name)
    eta = worker.membership.next_eta
    for seed in range(8):
        if seed == 4:
            serving = await restart(serve, serving, tmp_path, **settings)
            worker = moved(worker, serving)
            await worker.join()
            await worker.pull()
            oracle.leave(worker.name)
            oracle.pull(worker.name)
        delta = worker.delta(seed)
        outcome = await worker.commit(delta)
        oracle.commit(worker.name, delta.parameters, eta)
        np.testing.assert_array_equal(outcome.reply.values.parameters, oracle.held(worker.name))
        eta = outcome.verdict.next_eta
    assert (await serving.status()).settings.rule_settings["weight_decay"] == 0.5
    assert eta == pytest.approx(0.8 * 0.7**4)


async def test_weight_decay_is_refused_where_it_cannot_work(serve: Serve) -> None:
    with pytest.raises(StartupError, match="rule 'dana' has no setting 'weight_decay'"):
        await serve(rule="dana", weight_decay=0.1)
    with pytest.raises(ValueError, match=r"weight_decay 10 with eta 0\.5 leaves nothing of the parameters"):
        await serve(weight_decay=10, eta=0.5)


@pytest.mark.parametrize("durability", ["interval", "commit"])
async def test_another_rule_after_a_restart_begins_anew_with_a_warning(
    serve: Serve, tmp_path: Path, durability: str, caplog: pytest.LogCaptureFixture
) -> None:
    serving = await serve(data_dir=tmp_path, rule="fadas", durability=durability)
    (worker,) = await serving.training(1)
    await worker.commit(worker.delta(1))
    serving = await restart(serve, serving, tmp_path, rule="gap-aware", durability=durability)
    assert "nothing that rule gap-aware keeps of a run: its vectors begin at 0" in caplog.text
    assert serving.server.rule.kept_scalars == {"commits": 0}
    back = moved(worker, serving)
    await back.join()
    await back.pull()
    await back.commit(back.delta(2))
    serving = await restart(serve, serving, tmp_path, rule="gap-aware", durability=durability)
    assert serving.server.rule.kept_scalars == {"commits": 1}


@pytest.mark.parametrize("durability", ["interval", "commit"])
@pytest.mark.parametrize("kind", ["none", "rms"])
async def test_a_run_of_a_version_with_preconditioners_goes_on_unless_it_had_one(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, durability: str
) -> None:
    def older_record(rule: UpdateRule) -> dict[str, Any]:
        return {"name": rule.name, "precondition": kind, "scalars": {}}

    with monkeypatch.context() as older:
        for module in ("durability.checkpointer", "flow.applier", "state.kept_rule"):
            older.setattr(f"gem_server.{module}.rule_record", older_record)
        serving = await serve(data_dir=tmp_path, durability=durability)
        (worker,) = await serving.training(1)
        await worker.commit(worker.delta(1))
        await serving.close()
        await serving.stop()
    if kind == "none":
        serving = await serve(data_dir=tmp_path, resume=True, durability=durability)
        assert (await serving.status()).commits == 1
        return
    said = r"trained with --precondition rms, .*gemps\.load\(.*start a new run in another --data-dir"
    with pytest.raises(StartupError, match=said):
        await serve(data_dir=tmp_path, resume=True, durability=durability)


async def test_stop_applies_what_is_complete_and_refuses_what_is_not(serve: Serve, tmp_path: Path) -> None:
    settings = {"order": "round-robin", "min_workers": 3, "data_dir": tmp_path}
    serving = await serve(**settings)
    first, second, _ = await serving.training(3, LARGE)
    uploading = first.commit_stream()
    await uploading.send_opening(first.prepare(first.delta(1)))
    complete = second.commit_stream()
    commit = second.prepare(second.delta(2))
    await complete.send_commit(commit)
    await serving.until_queued(1)
    await serving.stop()
    await uploading.refused("DRAINING")
    outcome = await complete.outcome()
    assert outcome.verdict.version.clock == 2
    await serving.close()

    serving = await serve(resume=True, **settings)
    status = await serving.status()
    assert (status.commits, status.version.clock) == (1, 2)
    np.testing.assert_array_equal((await serving.values(LARGE)).parameters, outcome.reply.values.parameters)
    back = moved(second, serving)
    assert (await back.join()).last_applied_sequence == 1


async def test_checkpoint_on_demand_holds_every_name_of_the_model(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(data_dir=tmp_path)
    (worker,) = await serving.training(1)
    outcome = await worker.commit(worker.delta(1))
    answer = await serving.stub.Control(CHECKPOINT)
    assert answer.version == outcome.verdict.version
    path = Path(answer.checkpoint_path)
    assert path.parent.parent == tmp_path
    tensors = load_file(path / "model.safetensors")
    assert set(tensors) == {"weight", "head.weight", "bias", "running_mean", "steps"}
    weight = outcome.reply.values.parameters[:630].reshape(7, 90)
    np.testing.assert_array_equal(tensors["weight"], weight)
    np.testing.assert_array_equal(tensors["head.weight"], weight)
    json.loads((path / "state.json").read_text())
    status = (await serving.status()).checkpoint
    assert status.path == str(path)
    assert status.version == answer.version
    assert status.durability == "interval"


async def test_kill_loses_what_came_after_the_last_checkpoint_and_nothing_else(serve: Serve, tmp_path: Path) -> None:
    """A server that is back from an older checkpoint tells the sequence it knows, and the worker goes on there."""
    serving = await serve(data_dir=tmp_path)
    (worker,) = await serving.training(1)
    await worker.commit(worker.delta(1))
    await serving.stub.Control(CHECKPOINT)
    checkpointed = await serving.values()
    await worker.commit(worker.delta(2))
    # Nothing of the first server may touch the directory any more; it is stopped (without a word) by the fixture.
    copy = tmp_path.parent / f"{tmp_path.name}-as-after-kill"
    shutil.copytree(tmp_path, copy, symlinks=True)
    serving = await serve(data_dir=copy, resume=True)
    np.testing.assert_array_equal((await serving.values()).parameters, checkpointed.parameters)
    back = moved(worker, serving)
    assert (await back.join()).last_applied_sequence == 1
    await back.pull()
    outcome = await back.commit(back.delta(3))
    assert outcome.verdict.sequence == 2
    assert outcome.verdict.version.clock == 3


async def test_worker_with_another_layout_is_refused_after_a_restart_too(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(data_dir=tmp_path)
    await serving.training(1)
    serving = await restart(serve, serving, tmp_path)
    await refused(serving.worker(LARGE).join(), "LAYOUT_MISMATCH")


async def test_steps_a_worker_has_made_count_after_a_restart(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(data_dir=tmp_path, steps=3)
    worker, _ = await serving.training(2)
    for seed in range(2):
        await worker.commit(worker.delta(seed))
    serving = await restart(serve, serving, tmp_path, steps=3)
    back = moved(worker, serving)
    await back.join()
    await back.pull()
    assert (await back.commit(back.delta(5))).verdict.run_state == run_pb2.RUN_STATE_FINISHED


async def test_finished_run_stays_finished_after_a_restart(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(data_dir=tmp_path, commits=1)
    (worker,) = await serving.training(1)
    last = await worker.commit(worker.delta(1))
    serving = await restart(serve, serving, tmp_path, commits=1)
    back = moved(worker, serving)
    assert (await back.join()).run_state == run_pb2.RUN_STATE_FINISHED
    assert bytes((await back.pull()).payload) == bytes(last.reply.payload)
    await refused(back.commit_on_new_stream(back.prepare(back.delta(2))), "RUN_FINISHED")


async def test_resumed_run_waits_for_its_workers_again(serve: Serve, tmp_path: Path) -> None:
    """WAITING is "fewer workers than the run wants"; by turns, the result would depend on who is back first."""
    settings = {"order": "round-robin", "min_workers": 2}
    serving = await serve(data_dir=tmp_path, **settings)
    await serving.training(2)
    serving = await restart(serve, serving, tmp_path, **settings)
    first = await serving.joined(name="worker-0")
    assert first.membership.run_state == run_pb2.RUN_STATE_WAITING
    second = await serving.joined(name="worker-1")
    assert second.membership.run_state == run_pb2.RUN_STATE_TRAINING


async def test_second_server_on_the_same_directory_is_refused_and_harms_nothing(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(data_dir=tmp_path)
    (worker,) = await serving.training(1)
    await worker.commit(worker.delta(1))
    with pytest.raises(StartupError, match="in use by another server"):
        await serve(data_dir=tmp_path, resume=True)
    await serving.next_commit_works(worker)
    serving = await restart(serve, serving, tmp_path)
    assert (await serving.status()).commits == 2


async def test_status_after_a_resume_tells_what_this_process_did_and_where_it_began(
    serve: Serve, tmp_path: Path
) -> None:
    serving = await serve(data_dir=tmp_path)
    (worker,) = await serving.training(1)
    for seed in range(3):
        await worker.commit(worker.delta(seed))
    serving = await restart(serve, serving, tmp_path)
    resumed = (tmp_path / "latest").resolve()
    back = moved(worker, serving)
    await back.join()
    await back.pull()
    await back.commit(back.delta(9))
    status = await serving.status()
    assert (status.commits, status.commits_of_process) == (4, 1)
    assert status.checkpoint.path == str(resumed)
    assert (status.checkpoint.version.incarnation, status.checkpoint.version.clock) == (status.version.incarnation, 4)


async def test_a_run_that_is_over_is_written_once(serve: Serve, tmp_path: Path) -> None:
    """It is written when it finishes, and neither again when the server stops, nor after a resume without a commit."""
    serving = await serve(commits=1, data_dir=tmp_path, checkpoint_interval=0)
    (worker,) = await serving.training(1)
    await worker.commit(worker.delta(1))
    await worker.leave()
    await serving.until(lambda status: status.checkpoint.version == status.version)
    written = (tmp_path / "latest").resolve()
    serving = await restart(serve, serving, tmp_path, commits=1)
    assert (tmp_path / "latest").resolve() == written
    await serving.stop()
    assert (tmp_path / "latest").resolve() == written


async def test_what_changed_without_a_commit_is_written_at_the_end(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(data_dir=tmp_path, checkpoint_interval=0)
    await serving.training(1)
    await serving.stub.Control(CHECKPOINT)
    written = (tmp_path / "latest").resolve()
    newcomer = await serving.joined(name="newcomer")
    serving = await restart(serve, serving, tmp_path)
    assert (tmp_path / "latest").resolve() != written
    assert {worker.name: worker.rank for worker in (await serving.status()).workers}["newcomer"] == 1
    assert newcomer.membership.rank == 1


async def test_an_operators_finish_survives_a_crash_though_no_commit_came_since_the_newest_checkpoint(
    serve: Serve, tmp_path: Path
) -> None:
    serving = await serve(data_dir=tmp_path / "live", checkpoint_interval=0)
    await serving.training(1)
    await serving.stub.Control(CHECKPOINT)
    finish = operations_pb2.ControlRequest(action=operations_pb2.CONTROL_ACTION_FINISH, reason="enough")
    await serving.stub.Control(finish)
    state = tmp_path / "live" / "latest" / "state.json"
    await eventually_async(lambda: json.loads(state.read_text(encoding="utf-8"))["finished_because"])

    def copied() -> bool:
        shutil.rmtree(tmp_path / "crashed", ignore_errors=True)
        try:
            shutil.copytree(tmp_path / "live", tmp_path / "crashed", symlinks=True)
        except shutil.Error:  # an older checkpoint has just been deleted
            return False
        return True

    await eventually_async(copied)
    after = await serve(data_dir=tmp_path / "crashed", resume=True)
    assert (await after.status()).run_state == run_pb2.RUN_STATE_FINISHED
