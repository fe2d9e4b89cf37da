"""A run that waits for workers says so, in the server's log and in its status."""

import logging
from pathlib import Path

import pytest
from gem_server import waiting_notice
from gemps.v1 import run_pb2

from tests.waiting import eventually_async
from tests.wire.conftest import Serve
from tests.wire.serving import Serving

WAITING, TRAINING, FINISHED = run_pb2.RUN_STATE_WAITING, run_pb2.RUN_STATE_TRAINING, run_pb2.RUN_STATE_FINISHED


async def test_a_server_that_its_workers_have_left_says_that_it_waits_for_some(
    serving: Serving, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (worker,) = await serving.training(1)
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(waiting_notice, "FIRST_SECONDS", 0.0)
    await worker.leave()
    said = "no worker is joined, and the run waits for workers (earlier ones that are not there: worker-0)"
    await eventually_async(lambda: any(said in text for text in caplog.messages))


async def test_a_server_with_too_few_workers_says_how_many_are_missing(
    serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(waiting_notice, "FIRST_SECONDS", 0.0)
    serving = await serve(min_workers=4)
    await serving.training(3)
    assert (await serving.status()).missing_workers == 1
    await eventually_async(lambda: any("joined 3 of 4, missing 1" in text for text in caplog.messages))
    await serving.joined()
    status = await serving.status()
    assert (status.run_state, status.missing_workers) == (TRAINING, 0)


async def resumed(serve: Serve, data_dir: Path, **settings: object) -> Serving:
    """A server that resumes a run of which two workers have committed once each."""
    before = await serve(data_dir=data_dir, **settings)
    for worker in await before.training(2):
        await worker.commit(worker.delta(1))
    await before.stop()
    return await serve(data_dir=data_dir, resume=True, **settings)


async def test_a_run_that_had_begun_goes_on_with_the_first_worker_that_comes_back(serve: Serve, tmp_path: Path) -> None:
    serving = await resumed(serve, tmp_path, min_workers=2)
    status = await serving.status()
    assert (status.run_state, status.missing_workers) == (WAITING, 1)
    (worker,) = await serving.training(1)
    assert worker.membership.run_state == TRAINING
    assert (await worker.commit(worker.delta(2))).verdict.version.clock == 4


async def test_a_run_that_had_only_its_first_parameters_waits_for_all_workers_again(
    serve: Serve, tmp_path: Path
) -> None:
    before = await serve(data_dir=tmp_path, min_workers=2)
    await before.training(1)
    await before.stop()
    serving = await serve(data_dir=tmp_path, min_workers=2, resume=True)
    first = await serving.joined(name="worker-0")
    assert first.membership.run_state == WAITING
    assert (await serving.status()).missing_workers == 1


async def test_a_worker_that_spends_its_budget_first_after_a_restart_does_not_finish_the_run_of_the_others(
    serve: Serve, tmp_path: Path
) -> None:
    serving = await resumed(serve, tmp_path, min_workers=2, steps=2)
    first = await serving.joined(name="worker-0")
    await first.pull()
    assert (await first.commit(first.delta(2))).verdict.run_state == FINISHED  # the worker's own state
    await first.leave()
    assert (await serving.status()).run_state == TRAINING
    second = await serving.joined(name="worker-1")
    await second.pull()
    await second.commit(second.delta(2))
    assert (await serving.status()).run_state == FINISHED


async def test_a_worker_that_stays_away_after_a_restart_is_expected_for_the_session_timeout_only(
    serve: Serve, tmp_path: Path
) -> None:
    serving = await resumed(serve, tmp_path, min_workers=2, steps=2, session_timeout=1.0)
    first = await serving.joined(name="worker-0")
    await first.pull()
    await first.commit(first.delta(2))
    await first.leave()
    await serving.until(lambda status: status.run_state == FINISHED)


async def test_in_a_strict_order_a_restarted_run_waits_for_all_workers_but_not_for_ever(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    serving = await resumed(serve, tmp_path, min_workers=2, order="round-robin", session_timeout=1.5)
    first = await serving.joined(name="worker-1")
    assert first.membership.run_state == WAITING
    await first.pull()
    assert (await first.commit(first.delta(2))).verdict.version.clock == 4
    assert any("training goes on without them" in text for text in caplog.messages)
