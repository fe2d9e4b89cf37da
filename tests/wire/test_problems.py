"""Problems of a running server: their causes are real, and they are there within seconds of them."""

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from gem_server import problem_watch
from gem_server.problem_watch import LOOK_SECONDS
from gem_server.telemetry import problems as rules
from gemps.v1 import status_pb2

from tests.security.authority import Authority, replace
from tests.small_disk import small_disk_at
from tests.waiting import eventually_async
from tests.wire.calls import Trust
from tests.wire.conftest import Serve
from tests.wire.model import LARGE
from tests.wire.refusals import Refusal, answered_or_refused, refused
from tests.wire.serving import Serving

# A problem is to be seen within 10 s of its cause, and to be gone 30 s after its end.
APPEARS, ENDS = 10.0, 30.0
WARNING, CRITICAL = status_pb2.PROBLEM_SEVERITY_WARNING, status_pb2.PROBLEM_SEVERITY_CRITICAL


@pytest.fixture(autouse=True)
def looks_are_frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem_watch, "LOOK_SECONDS", 0.2)


async def until(serving: Serving, kind: str, severity: int = 0) -> status_pb2.Problem:
    """The problem of this kind, once there is one; of this severity, if one is given."""

    async def look() -> list[status_pb2.Problem]:
        return [one for one in (await serving.status()).problems if one.kind == kind and severity in (0, one.severity)]

    (found,) = await eventually_async(look, lambda: f"no {kind}", patience=APPEARS, interval=0.1)
    return found


async def until_over(serving: Serving, kind: str) -> None:
    async def is_over() -> bool:
        return kind not in {one.kind for one in (await serving.status()).problems}

    await eventually_async(is_over, lambda: f"{kind} does not end", patience=ENDS, interval=0.1)


async def test_a_server_that_is_well_has_no_problem(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(data_dir=tmp_path / "data")
    (worker,) = await serving.training(1)
    await worker.commit(worker.delta(1))
    serving.server.problem_watch.look()
    await asyncio.sleep(0.5)  # the disk is read on a thread
    serving.server.problem_watch.look()
    assert not (await serving.status()).problems


async def test_a_disk_that_fills_up(
    tmp_path: Path, serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the looks of a real server, each problem within the time that is promised."""
    monkeypatch.setattr(problem_watch, "LOOK_SECONDS", LOOK_SECONDS)
    caplog.set_level(logging.INFO)
    async with AsyncExitStack() as stack:
        disk = stack.enter_context(small_disk_at(tmp_path / "disk", "8m"))
        serving = await serve(data_dir=disk / "data", checkpoint_interval=1.0)
        stack.push_async_callback(serving.stop)

        @stack.callback  # before the server stops, whatever happens
        def free() -> None:
            for name in ("filler", "more"):
                (disk / name).unlink(missing_ok=True)

        (worker,) = await serving.training(1)
        (disk / "filler").write_bytes(bytes(8 * 1024 * 1024 - 1_500_000))
        await until(serving, "disk-space", WARNING)
        with (disk / "more").open("wb", buffering=0) as more:
            while True:
                try:
                    more.write(bytes(4096))
                except OSError:
                    break
        await worker.commit(worker.delta(1))
        failed = await until(serving, "checkpoint-failed")
        assert "No space left" in failed.text
        assert failed.severity == WARNING  # the first one stands
        assert str(disk) in (await until(serving, "disk-space", CRITICAL)).text
        free()
        await until_over(serving, "checkpoint-failed")
        await until_over(serving, "disk-space")
    events = [(getattr(one, "event", ""), getattr(one, "problem", "")) for one in caplog.records]
    for kind in ("checkpoint-failed", "disk-space"):
        assert ("problem", kind) in events


async def test_a_nearly_full_disk_that_slows_a_durable_run_down(tmp_path: Path, serve: Serve) -> None:
    async with AsyncExitStack() as stack:
        disk = stack.enter_context(small_disk_at(tmp_path / "disk", "9m"))
        serving = await serve(data_dir=disk / "data", durability="commit", checkpoint_interval=0)
        stack.push_async_callback(serving.stop)
        (worker,) = await serving.training(1, LARGE)

        async def commit(seed: int = 0) -> None:
            """Call again until the server accepts it, as a worker does after a refusal with RetryInfo."""
            while True:
                prepared = worker.prepare(worker.delta(seed))
                outcome = await answered_or_refused(worker.commit_on_new_stream(prepared), "STORAGE_FULL")
                seed += not isinstance(outcome, Refusal)
                await asyncio.sleep(0.1 if isinstance(outcome, Refusal) else 0)

        training = asyncio.create_task(commit())
        stack.callback(training.cancel)
        assert "commits wait until a checkpoint makes room" in (await until(serving, "log-room", WARNING)).text
        assert (await until(serving, "disk-space")).severity == WARNING


@pytest.mark.parametrize(("days", "severity"), [(40, 0), (20, WARNING), (3, CRITICAL), (-1, CRITICAL)])
async def test_a_certificate_that_expires_and_is_renewed(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int, severity: int
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.pair("server", days=40).write(tmp_path, "server")
    serving = await over_tls(serve, monkeypatch, authority, tls_cert=str(certificate), tls_key=str(key))
    authority.pair("server", days=days).write(tmp_path, "server")
    if severity:
        found = await until(serving, "certificate")
        assert found.severity == severity
        assert found.text.startswith(f"the certificate in tls.cert {certificate} ")
        authority.pair("server", days=40).write(tmp_path, "server")
    await until_over(serving, "certificate")


async def test_the_authority_of_clients_expires_too_and_a_damaged_file_is_told(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.pair("server", days=40).write(tmp_path, "server")
    tokens = replace(tmp_path / "tokens", "operator " + "t" * 32)
    tls = {"tls_cert": str(certificate), "tls_key": str(key), "tokens": str(tokens)}
    serving = await over_tls(serve, monkeypatch, authority, **tls)
    replace(tokens, "nonsense")
    replace(key, "no key")
    found = await eventually_async(lambda: of_kind(serving, "reload-failed", 2), patience=APPEARS, interval=0.1)
    texts = sorted(one.finding.text for one in found)
    assert "tls.cert, tls.key or tls.client_ca could not be read again" in texts[0]
    assert "tls.tokens could not be read again" in texts[1]
    replace(tokens, "operator " + "t" * 32)
    authority.pair("server", days=40).write(tmp_path, "server")
    await eventually_async(lambda: not of_kind(serving, "reload-failed"), patience=ENDS, interval=0.1)


async def over_tls(serve: Serve, monkeypatch: pytest.MonkeyPatch, authority: Authority, **settings: Any) -> Serving:
    monkeypatch.setattr(Trust, "authority", authority.file)
    return await serve(**settings)


def of_kind(serving: Serving, kind: str, count: int = 1) -> list[rules.Problem]:
    """As the server has them, if there are so many: for tests that cannot ask over the network."""
    found = [one for one in serving.server.problem_watch.problems.newest if one.finding.kind == kind]
    return found if len(found) >= count else []


async def test_a_token_that_the_server_does_not_know(serve: Serve, tmp_path: Path) -> None:
    tokens = replace(tmp_path / "tokens", "operator " + "t" * 32)
    serving = await serve(tokens=str(tokens))
    for _ in range(rules.FEW_REFUSALS + 1):
        await refused(serving.status(), "CREDENTIALS")
    (found,) = await eventually_async(lambda: of_kind(serving, "refusals"), patience=APPEARS, interval=0.1)
    assert "CREDENTIALS" in found.finding.text


async def test_workers_that_fall_silent_expire_and_come_back(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "SILENT_SECONDS", 0.5)
    serving = await serve(session_timeout=4.0)
    first, second = await serving.training(2)
    for step in range(3):
        await first.commit(first.delta(step))
        await second.commit(second.delta(step))

    async def go_on(step: int = 3) -> None:
        while True:
            step += 1
            await first.commit(first.delta(step))
            await asyncio.sleep(0.1)

    training = asyncio.create_task(go_on())
    assert [*(await until(serving, "silent-workers")).workers] == [second.name]
    await second.close()  # a session with an open stream does not end
    assert [*(await until(serving, "gone-workers")).workers] == [second.name]
    await until_over(serving, "silent-workers")
    await serving.adopt(second.twin()).join()
    serving.server.problem_watch.look()
    assert not of_kind(serving, "gone-workers")
    training.cancel()


async def test_a_run_without_its_workers(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MISSING_SECONDS", 1.0)
    serving = await serve(min_workers=2)
    first = await serving.joined()
    await first.initialize()
    assert "joined 1 of 2, missing 1" in (await until(serving, "missing-workers")).text
    await serving.joined()
    await until_over(serving, "missing-workers")


async def test_commits_that_stop(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "NO_COMMIT_SECONDS", 1.0)
    serving = await serve()
    (worker,) = await serving.training(1)
    for step in range(3):
        await worker.commit(worker.delta(step))
    assert (await until(serving, "no-commits")).severity == CRITICAL
    await worker.commit(worker.delta(9))
    serving.server.problem_watch.look()
    assert "no-commits" not in {one.kind for one in (await serving.status()).problems}


async def test_a_worker_that_has_left_is_departed_and_leaves_the_status(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gem_server.service.status.DEPARTED_SECONDS", 1.0)
    serving = await serve()
    first, second = await serving.training(2)
    await second.commit(second.delta(1))
    await second.leave("preempted")
    found = {one.name: one.condition for one in (await serving.status()).workers}
    assert found == {
        first.name: status_pb2.WORKER_CONDITION_WELL,
        second.name: status_pb2.WORKER_CONDITION_DEPARTED,
    }
    await eventually_async(lambda: names_are(serving, [first.name]))


async def test_of_many_departed_workers_the_newest_stay(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gem_server.service.status.MOST_DEPARTED", 2)
    serving = await serve()
    for number in range(4):
        worker = await serving.joined(name=f"w{number}")
        if number != 1:
            await worker.leave("preempted")
    assert await names_are(serving, ["w1", "w2", "w3"])


async def test_workers_that_have_spent_their_budgets_stay(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gem_server.service.status.MOST_DEPARTED", 0)
    serving = await serve(steps=1)
    first, second, third = await serving.training(3)
    await first.commit(first.delta(1))
    await first.leave("done")
    await second.leave("preempted")
    assert await names_are(serving, [first.name, third.name])


async def names_are(serving: Serving, names: list[str]) -> bool:
    return [one.name for one in (await serving.status()).workers] == names
