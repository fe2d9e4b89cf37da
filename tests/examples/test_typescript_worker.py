"""examples/workers/typescript: built from nothing, then trained, restarted under, stopped, and put through the kit."""

import re
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.examples.building import TYPESCRIPT, typescript_checkout
from tests.examples.workers import (
    accuracy_in,
    build,
    conformance,
    ended,
    free_port,
    kill,
    log_of,
    serving,
    wait_for_steps,
    working,
)

STEPS = 300
# With the packages fetched and everything compiled; the kit alone takes half a minute.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the worker is made of, built as its README says."""
    return typescript_checkout(tmp_path_factory)


@pytest.fixture(scope="module")
def worker(checkout: Path) -> list[str]:
    return ["node", str(checkout / TYPESCRIPT / "dist/src/main.js")]


def test_its_own_tests_pass_and_its_files_are_formatted(checkout: Path) -> None:
    assert re.search(r"^# fail 0$", build("npm", "test", folder=checkout / TYPESCRIPT), re.MULTILINE)
    build("npm", "run", "check-format", folder=checkout / TYPESCRIPT)


def test_two_of_them_learn_the_digits(worker: list[str], digits: Path, tmp_path: Path) -> None:
    budget = ("--steps", str(STEPS), "--min-workers", "2", "--exit-when-finished")
    with serving(tmp_path, *budget) as (address, server), ExitStack() as stack:
        for name in ("a", "b"):
            stack.enter_context(working(worker, name, address, tmp_path, "--task", str(digits)))
        assert server.wait(120) == 0
    for name in ("a", "b"):
        log = log_of(tmp_path, name)
        assert f"the run is finished: {STEPS} steps" in log
        assert accuracy_in(log) >= 0.95, log


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
        assert accuracy_in(log_of(tmp_path, name)) >= 0.95
    # One version for the first parameters, and one for each commit.
    assert f"stopped at clock {1 + 2 * STEPS}" in (tmp_path / "server.log").read_text(encoding="utf-8")


def test_a_server_that_comes_back_empty_gets_the_parameters_that_the_worker_holds(
    worker: list[str], digits: Path, tmp_path: Path
) -> None:
    port = free_port()
    wire = ("--delta-wire-type", "int8_block", "--parameter-wire-type", "float16")
    with ExitStack() as stack:
        with serving(tmp_path, port=port) as (address, server):
            process = stack.enter_context(
                working(worker, "a", address, tmp_path, "--task", str(digits), "--log-interval", "0", *wire)
            )
            wait_for_steps(process, tmp_path, "a", STEPS)
            kill(server)
        with serving(tmp_path, "--steps", "20", "--exit-when-finished", port=port):
            assert ended(process, tmp_path, "a") == 0
    log = log_of(tmp_path, "a")
    after = re.findall(r"loss (\d+\.\d+), staleness", log.partition("joining again")[2])
    assert len(after) == 20
    assert float(after[0]) < 1  # of parameters that nobody has trained it is 2.3
    assert "deltas in int8_block, parameters in float16" in log
    assert accuracy_in(log) >= 0.95


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_worker_that_is_stopped_leaves_the_run(
    number: signal.Signals, code: int, worker: list[str], digits: Path, tmp_path: Path
) -> None:
    with serving(tmp_path) as (address, _):
        with working(worker, "a", address, tmp_path, "--task", str(digits), "--log-interval", "0") as process:
            wait_for_steps(process, tmp_path, "a", 5)
            process.send_signal(number)
            assert ended(process, tmp_path, "a") == code
        assert "worker a left: interrupted" in (tmp_path / "server.log").read_text(encoding="utf-8")


def test_a_worker_whose_name_another_one_takes_says_so_and_ends(
    worker: list[str], digits: Path, tmp_path: Path
) -> None:
    flags = ("--task", str(digits), "--log-interval", "0")
    (tmp_path / "second").mkdir()
    with ExitStack() as stack:
        address, _ = stack.enter_context(serving(tmp_path))
        first = stack.enter_context(working(worker, "a", address, tmp_path, *flags))
        wait_for_steps(first, tmp_path, "a", 5)
        second = stack.enter_context(working(worker, "a", address, tmp_path / "second", *flags))
        assert ended(first, tmp_path, "a") == 1
        wait_for_steps(second, tmp_path / "second", "a", 5)
    assert "another process joined as a" in log_of(tmp_path, "a").splitlines()[-1]


def test_wrong_usage_is_one_line_with_the_fix(worker: list[str], tmp_path: Path) -> None:
    (tmp_path / "wrong.json").write_text('{"task": "digits"}', encoding="utf-8")
    for arguments, says in (
        ((), "--task is missing"),
        (("--task", "nowhere.json"), "gemps export-task digits"),
        (("--task", "wrong.json"), "gemps export-task digits"),
        (("--task", "wrong.json", "--server", "localhost"), "HOST:PORT"),
    ):
        done = subprocess.run([*worker, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert says in done.stderr


def test_the_conformance_kit_passes_every_scenario(worker: list[str]) -> None:
    outcomes = conformance(worker, "--jobs", "4")
    assert len(outcomes) >= 38
    assert {name: outcome for name, outcome in outcomes.items() if outcome != "passed"} == {}
