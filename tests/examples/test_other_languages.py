"""What any worker in another language has to do: learn, bear killed servers and being killed, take signals and TLS."""

import json
import re
import signal
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.processes import gemps, wait_for
from tests.examples.workers import (
    accuracy_in,
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
# Go's worker has the like of their tests in test_go_worker.py.
PARALLEL = ("cpp", "typescript")

# Where no other test has done that before, the worker is built; and the kit takes half a minute.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(params=("cpp", "typescript", "go"))
def worker(request: pytest.FixtureRequest) -> list[str]:
    """A worker's command."""
    command: list[str] = request.getfixturevalue(f"{request.param}_worker")
    return command


@pytest.fixture(params=PARALLEL)
def worker_of_two(request: pytest.FixtureRequest) -> list[str]:
    """A worker's command, of those that say the same."""
    command: list[str] = request.getfixturevalue(f"{request.param}_worker")
    return command


@pytest.fixture(params=PARALLEL)
def candidate(request: pytest.FixtureRequest) -> list[str]:
    """A worker's command for the conformance kit."""
    command: list[str] = request.getfixturevalue(f"{request.param}_candidate")
    return command


def test_two_of_them_learn_the_digits(worker_of_two: list[str], digits: Path, tmp_path: Path) -> None:
    budget = ("--steps", str(STEPS), "--min-workers", "2", "--exit-when-finished")
    with serving(tmp_path, *budget) as (address, server), ExitStack() as stack:
        for name in ("a", "b"):
            stack.enter_context(working(worker_of_two, name, address, tmp_path, "--task", str(digits)))
        assert server.wait(120) == 0
    for name in ("a", "b"):
        log = log_of(tmp_path, name)
        assert f"the run is finished: {STEPS} steps" in log
        assert accuracy_in(log) >= 0.95, log


def test_a_worker_that_is_killed_and_restarted_goes_on_in_the_run(
    worker_of_two: list[str], digits: Path, tmp_path: Path
) -> None:
    """The new process has the name, and with it the rank and what is left of the budget; each commit counts once."""
    again = tmp_path / "again"
    again.mkdir()
    flags = ("--task", str(digits), "--log-interval", "0")
    budget = ("--steps", str(STEPS), "--min-workers", "2", "--exit-when-finished")
    with serving(tmp_path, *budget) as (address, server), ExitStack() as stack:
        first = stack.enter_context(working(worker_of_two, "a", address, tmp_path, *flags))
        other = stack.enter_context(working(worker_of_two, "b", address, tmp_path, *flags))
        wait_for_steps(first, tmp_path, "a", 50)
        kill(first)
        second = stack.enter_context(working(worker_of_two, "a", address, again, *flags))
        assert [ended(second, again, "a"), ended(other, tmp_path, "b")] == [0, 0]
        assert server.wait(120) == 0
    assert re.findall(r"joined with rank (\d)", log_of(tmp_path, "a")) == re.findall(
        r"joined with rank (\d)", log_of(again, "a")
    )
    assert accuracy_in(log_of(again, "a")) >= 0.93
    # One version for the first parameters, and one for each commit.
    assert f"stopped at clock {1 + 2 * STEPS}" in (tmp_path / "server.log").read_text(encoding="utf-8")


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
    with ExitStack() as stack:
        with serving(tmp_path, port=port) as (address, server):
            process = stack.enter_context(
                working(worker, "a", address, tmp_path, "--task", str(digits), "--log-interval", "0")
            )
            wait_for_steps(process, tmp_path, "a", 2 * STEPS)  # one worker takes as many as two
            kill(server)
        with serving(tmp_path, "--steps", "20", "--exit-when-finished", port=port):
            assert ended(process, tmp_path, "a") == 0
    log = log_of(tmp_path, "a")
    after = re.findall(r"loss (\d+\.\d+)", log.partition("joining again")[2])
    assert len(after) == 20
    assert float(after[0]) < 1  # of parameters that nobody has trained it is 2.3
    assert accuracy_in(log) >= 0.95


def test_with_tls_and_a_token(worker_of_two: list[str], digits: Path, tmp_path: Path) -> None:
    made = gemps("certs", "--name", "127.0.0.1", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    certificates = tmp_path / "certs"
    flags = ("--task", str(digits))
    secured = ("--steps", "20", "--exit-when-finished", "--credentials", str(certificates / "server"))
    with serving(tmp_path, *secured) as (address, server):
        # An observer may not train: refused for good.
        wrong = ("--credentials", str(certificates / "observer"))
        with working(worker_of_two, "wrong", address, tmp_path, *flags, *wrong) as process:
            assert ended(process, tmp_path, "wrong") == 2
        with working(
            worker_of_two, "a", address, tmp_path, *flags, "--credentials", str(certificates / "worker")
        ) as process:
            assert ended(process, tmp_path, "a") == 0
        assert server.wait(120) == 0
    assert re.search("ROLE|CREDENTIALS", log_of(tmp_path, "wrong"))
    assert "the run is finished: 20 steps" in log_of(tmp_path, "a")


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
    with working(worker, "a", f"127.0.0.1:{free_port()}", tmp_path, "--task", str(digits)) as process:
        wait_for(lambda: "joining again" in log_of(tmp_path, "a"), process, tmp_path / "a.log")
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
        assert ended(first, tmp_path, "a") == 2
        wait_for_steps(second, second_folder, "a", 5)
    assert "NEWER_SESSION" in log_of(tmp_path, "a").splitlines()[-1]


def _written(path: Path, changed: Callable[[dict[str, object]], object], digits: Path) -> str:
    content = json.loads(digits.read_text(encoding="utf-8"))
    changed(content)
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)


def test_wrong_usage_names_the_fix(worker_of_two: list[str], digits: Path, tmp_path: Path) -> None:
    wrong = _written(tmp_path / "wrong.json", lambda content: content.pop("train"), digits)
    broken = _written(tmp_path / "broken.json", lambda content: content.update(classes=9), digits)
    for arguments, says in (
        (("--tusk", "digits.json"), "--"),
        (("--task", "nowhere.json"), "gemps export-task digits"),
        (("--task", wrong), "gemps export-task digits"),
        (("--task", broken), "a label that is no class"),
        (("--task", str(digits), "--server", "localhost"), "HOST:PORT"),
        (("--task", str(digits), "--credentials", str(tmp_path)), "ca.crt"),
    ):
        done = subprocess.run([*worker_of_two, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2, done
        assert says in done.stderr


def test_the_conformance_kit_passes_every_scenario_that_is_not_optional(candidate: list[str]) -> None:
    """What a worker may leave out is for the kit to say: status 3 in any other scenario has failed."""
    outcomes = conformance(candidate)
    failed = {
        name: outcome for name, outcome in outcomes.items() if outcome != "passed" and '"not supported"' not in outcome
    }
    assert failed == {}
    assert list(outcomes.values()).count("passed") >= 55
