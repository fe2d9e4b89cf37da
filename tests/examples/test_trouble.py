"""What any worker has to bear, whatever its language: killed servers, signals, another worker of its name."""

import re
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.processes import wait_for
from tests.examples.workers import accuracy_in, ended, free_port, kill, log_of, serving, wait_for_steps, working

STEPS = 300

# Where no other test has done that before, the worker is built.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(params=["cpp_worker", "typescript_worker", "go_worker"], ids=["cpp", "typescript", "go"])
def worker(request: pytest.FixtureRequest) -> list[str]:
    """A worker's command."""
    command: list[str] = request.getfixturevalue(request.param)
    return command


@pytest.mark.long
def test_a_server_that_is_killed_and_resumed_has_every_commit_exactly_once(
    worker: list[str], digits: Path, tmp_path: Path
) -> None:
    port, names = free_port(), ("a", "b")
    kept = ("--data-dir", str(tmp_path / "data"), "--durability", "commit")
    budget = ("--steps", str(STEPS), "--min-workers", "2")
    with ExitStack() as stack:
        with serving(tmp_path, *kept, *budget, port=port) as (address, server):
            workers = [
                stack.enter_context(
                    working(worker, name, address, tmp_path, "--task", str(digits), "--log-interval", "0")
                )
                for name in names
            ]
            for name, process in zip(names, workers, strict=True):
                wait_for_steps(process, tmp_path, name, 50)
            kill(server)
        with serving(tmp_path, *kept, *budget, "--resume", "--exit-when-finished", port=port) as (_, server):
            assert [ended(process, tmp_path, name) for name, process in zip(names, workers, strict=True)] == [0, 0]
            assert server.wait(120) == 0
    for name in names:
        assert "joining again" in log_of(tmp_path, name)
        assert accuracy_in(log_of(tmp_path, name)) >= 0.93  # moments began anew, and order is chance
    # One version for the first parameters, and one for each commit.
    assert f"stopped at clock {1 + 2 * STEPS}" in (tmp_path / "server.log").read_text(encoding="utf-8")


@pytest.mark.long
def test_a_server_that_comes_back_empty_gets_the_parameters_that_the_worker_holds(
    worker: list[str], digits: Path, tmp_path: Path
) -> None:
    port = free_port()
    wire = ("--delta-wire-type", "bfloat16", "--parameter-wire-type", "bfloat16")
    with ExitStack() as stack:
        with serving(tmp_path, port=port) as (address, server):
            process = stack.enter_context(
                working(worker, "a", address, tmp_path, "--task", str(digits), "--log-interval", "0", *wire)
            )
            wait_for_steps(process, tmp_path, "a", 2 * STEPS)  # one worker takes as many as two
            kill(server)
        with serving(tmp_path, "--steps", "20", "--exit-when-finished", port=port):
            assert ended(process, tmp_path, "a") == 0
    log = log_of(tmp_path, "a")
    after = re.findall(r"loss (\d+\.\d+)", log.partition("joining again")[2])
    assert len(after) == 20
    assert "deltas in bfloat16, parameters in bfloat16" in log
    assert float(after[0]) < 1  # of parameters that nobody has trained it is 2.3
    assert accuracy_in(log) >= 0.95


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.long), (signal.SIGTERM, 143)]
)
def test_a_worker_that_is_stopped_leaves_the_run(
    number: signal.Signals, code: int, worker: list[str], digits: Path, tmp_path: Path
) -> None:
    with serving(tmp_path) as (address, _):
        with working(worker, "a", address, tmp_path, "--task", str(digits), "--log-interval", "0") as process:
            wait_for_steps(process, tmp_path, "a", 5)
            process.send_signal(number)
            assert ended(process, tmp_path, "a") == code
        assert "worker a left: interrupted" in (tmp_path / "server.log").read_text(encoding="utf-8")


def test_a_worker_that_waits_for_a_server_can_be_stopped(worker: list[str], digits: Path, tmp_path: Path) -> None:
    waits = re.compile("waiting for the server|trying again")
    with working(worker, "a", f"127.0.0.1:{free_port()}", tmp_path, "--task", str(digits)) as process:
        wait_for(lambda: bool(waits.search(log_of(tmp_path, "a"))), process, tmp_path / "a.log")
        process.terminate()
        assert ended(process, tmp_path, "a") == 143


@pytest.mark.long
def test_a_worker_whose_name_another_one_takes_says_so_and_ends(
    worker: list[str], digits: Path, tmp_path: Path
) -> None:
    flags = ("--task", str(digits), "--log-interval", "0")
    second_folder = tmp_path / "second"
    second_folder.mkdir()
    with ExitStack() as stack:
        address, _ = stack.enter_context(serving(tmp_path))
        first = stack.enter_context(working(worker, "a", address, tmp_path, *flags))
        wait_for_steps(first, tmp_path, "a", 5)
        second = stack.enter_context(working(worker, "a", address, second_folder, *flags))
        assert ended(first, tmp_path, "a") == 1
        wait_for_steps(second, second_folder, "a", 5)
    assert "another process joined" in log_of(tmp_path, "a").splitlines()[-1]
