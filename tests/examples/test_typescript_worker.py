"""examples/workers/typescript: built from nothing, then trained, and put through the kit."""

import re
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.examples.building import TYPESCRIPT, typescript_checkout
from tests.examples.workers import (
    COARSE,
    accuracy_in,
    build,
    conformance,
    ended,
    log_of,
    serving,
    wait_for_steps,
    working,
)
from tests.shards.processes import SupervisedShards

STEPS = 300
# With the packages fetched and everything compiled; the kit alone takes half a minute.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the worker is made of, built as its README says."""
    return typescript_checkout(tmp_path_factory)


@pytest.mark.long
def test_its_own_tests_pass_and_its_files_are_formatted(checkout: Path) -> None:
    assert re.search(r"^# fail 0$", build("npm", "test", folder=checkout / TYPESCRIPT), re.MULTILINE)
    build("npm", "run", "check-format", folder=checkout / TYPESCRIPT)


def test_two_of_them_learn_the_digits(typescript_worker: list[str], digits: Path, tmp_path: Path) -> None:
    budget = ("--steps", str(STEPS), "--min-workers", "2", "--exit-when-finished")
    with serving(tmp_path, *budget) as (address, server), ExitStack() as stack:
        for name in ("a", "b"):
            stack.enter_context(working(typescript_worker, name, address, tmp_path, "--task", str(digits)))
        assert server.wait(120) == 0
    for name in ("a", "b"):
        log = log_of(tmp_path, name)
        assert f"the run is finished: {STEPS} steps" in log
        assert accuracy_in(log) >= 0.95, log


@pytest.mark.long
def test_two_of_them_train_on_two_servers_of_which_one_is_killed(
    typescript_worker: list[str], digits: Path, tmp_path: Path
) -> None:
    settings = ("--steps", str(STEPS), "--min-workers", "2", "--eta", "0.05", "--durability", "commit")
    flags = ("--task", str(digits), "--log-interval", "0")
    with SupervisedShards(2, tmp_path, *settings) as shards, ExitStack() as stack:
        workers = [
            stack.enter_context(working(typescript_worker, name, shards.address, tmp_path, *flags)) for name in "ab"
        ]
        wait_for_steps(workers[0], tmp_path, "a", 50)
        shards.kill(1, after=0)
        assert [ended(process, tmp_path, name) for name, process in zip("ab", workers, strict=True)] == [0, 0]
    for name in "ab":
        log = log_of(tmp_path, name)
        assert "2 servers" in log
        assert "joining again" in log
        assert accuracy_in(log) >= 0.9, log
    # One version for the first parameters, and one for each commit.
    assert [f"stopped at clock {1 + 2 * STEPS}" in shards.log(index) for index in range(2)] == [True, True]


def test_wrong_usage_is_one_line_with_the_fix(typescript_worker: list[str], tmp_path: Path) -> None:
    (tmp_path / "wrong.json").write_text('{"task": "digits"}', encoding="utf-8")
    for arguments, says in (
        ((), "--task is missing"),
        (("--task", "nowhere.json"), "gemps export-task digits"),
        (("--task", "wrong.json"), "gemps export-task digits"),
        (("--task", "wrong.json", "--server", "localhost"), "HOST:PORT"),
    ):
        done = subprocess.run(
            [*typescript_worker, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert says in done.stderr


@pytest.mark.long
def test_the_conformance_kit_passes_every_scenario(typescript_worker: list[str]) -> None:
    outcomes = conformance(typescript_worker, "--jobs", "4")
    assert len(outcomes) >= 38
    assert {name for name, outcome in outcomes.items() if outcome != "passed"} == COARSE
    assert all('"not spoken"' in outcomes[name] for name in COARSE)
