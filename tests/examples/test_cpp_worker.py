"""examples/workers/cpp: built from nothing, then trained, restarted under, stopped, and put through the kit."""

import json
import re
import shutil
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.processes import wait_for
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

STEPS = 400
# Of the layouts of .clang-format's many versions, the sources have that of Debian 12's.
CLANG_FORMAT = "14."

# A build from nothing takes a minute and a half on two slow cores.
pytestmark = pytest.mark.timeout(600)


def test_its_own_tests_pass(cpp_folder: Path) -> None:
    said = build("ctest", "--output-on-failure", folder=cpp_folder / "build")
    assert "100% tests passed" in said
    assert int(re.search(r"out of (\d+)", said)[1]) >= 7  # type: ignore[index]


def test_its_sources_are_formatted(cpp_folder: Path) -> None:
    if shutil.which("clang-format") is None or f" version {CLANG_FORMAT}" not in build(
        "clang-format", "--version", folder=cpp_folder
    ):
        pytest.skip(f"clang-format {CLANG_FORMAT}x is not installed, and others lay the sources out otherwise")
    sources = [str(path) for path in cpp_folder.glob("*/*.?pp") if path.parent.name in ("src", "tests")]
    assert len(sources) > 20
    build("clang-format", "--dry-run", "--Werror", *sources, folder=cpp_folder)


@pytest.mark.parametrize(
    "types", [("float32", "float32"), ("int8_block", "bfloat16")], ids=lambda types: "-".join(types)
)
def test_two_of_them_learn_the_digits(
    types: tuple[str, str], cpp_worker: list[str], digits: Path, tmp_path: Path
) -> None:
    budget = ("--steps", str(STEPS), "--min-workers", "2", "--exit-when-finished")
    wire = ("--delta-wire-type", types[0], "--parameter-wire-type", types[1])
    with serving(tmp_path, *budget) as (address, server), ExitStack() as stack:
        workers = [
            stack.enter_context(working(cpp_worker, name, address, tmp_path, "--task", str(digits), *wire))
            for name in ("a", "b")
        ]
        assert [ended(process, tmp_path, name) for name, process in zip("ab", workers, strict=True)] == [0, 0]
        assert server.wait(120) == 0
    for name in ("a", "b"):
        log = log_of(tmp_path, name)
        assert f"deltas in {types[0]}, parameters in {types[1]}" in log
        assert f"the run is finished: {STEPS} commits" in log
        assert accuracy_in(log) >= 0.95, log


def test_a_server_that_is_killed_and_resumed_has_every_commit_exactly_once(
    cpp_worker: list[str], digits: Path, tmp_path: Path
) -> None:
    port, names = free_port(), ("a", "b")
    kept = ("--data-dir", str(tmp_path / "data"), "--durability", "commit")
    budget = ("--steps", str(STEPS), "--min-workers", "2")
    with ExitStack() as stack:
        with serving(tmp_path, *kept, *budget, port=port) as (address, server):
            workers = [
                stack.enter_context(
                    working(cpp_worker, name, address, tmp_path, "--task", str(digits), "--log-interval", "0")
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
    cpp_worker: list[str], digits: Path, tmp_path: Path
) -> None:
    port = free_port()
    with ExitStack() as stack:
        with serving(tmp_path, port=port) as (address, server):
            process = stack.enter_context(
                working(cpp_worker, "a", address, tmp_path, "--task", str(digits), "--log-interval", "0")
            )
            wait_for_steps(process, tmp_path, "a", STEPS)
            kill(server)
        with serving(tmp_path, "--steps", "20", "--exit-when-finished", port=port):
            assert ended(process, tmp_path, "a") == 0
    log = log_of(tmp_path, "a")
    after = re.findall(r"loss (\d+\.\d+)", log.partition("joining again")[2])
    assert len(after) == 20
    assert float(after[0]) < 1  # of parameters that nobody has trained it is 2.3
    assert accuracy_in(log) >= 0.95


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_worker_that_is_stopped_leaves_the_run(
    number: signal.Signals, code: int, cpp_worker: list[str], digits: Path, tmp_path: Path
) -> None:
    with serving(tmp_path) as (address, _):
        with working(cpp_worker, "a", address, tmp_path, "--task", str(digits), "--log-interval", "0") as process:
            wait_for_steps(process, tmp_path, "a", 5)
            process.send_signal(number)
            assert ended(process, tmp_path, "a") == code
        assert "worker a left: interrupted" in (tmp_path / "server.log").read_text(encoding="utf-8")


def test_a_worker_that_waits_for_a_server_can_be_stopped(cpp_worker: list[str], digits: Path, tmp_path: Path) -> None:
    with working(cpp_worker, "a", f"127.0.0.1:{free_port()}", tmp_path, "--task", str(digits)) as process:
        wait_for(lambda: "waiting for the server" in log_of(tmp_path, "a"), process, tmp_path / "a.log")
        process.terminate()
        assert ended(process, tmp_path, "a") == 143


def test_a_worker_whose_name_another_one_takes_says_so_and_ends(
    cpp_worker: list[str], digits: Path, tmp_path: Path
) -> None:
    flags = ("--task", str(digits), "--log-interval", "0")
    second_folder = tmp_path / "second"
    second_folder.mkdir()
    with ExitStack() as stack:
        address, _ = stack.enter_context(serving(tmp_path))
        first = stack.enter_context(working(cpp_worker, "a", address, tmp_path, *flags))
        wait_for_steps(first, tmp_path, "a", 5)
        second = stack.enter_context(working(cpp_worker, "a", address, second_folder, *flags))
        assert ended(first, tmp_path, "a") == 1
        wait_for_steps(second, second_folder, "a", 5)
    assert "another process joined under this worker's name" in log_of(tmp_path, "a").splitlines()[-1]


def test_a_model_of_many_chunks_commits_at_either_port_of_the_server(cpp_worker: list[str], tmp_path: Path) -> None:
    for port in ("0", "-1"):
        folder = tmp_path / port
        folder.mkdir()
        with serving(folder, "--steps", "5", "--exit-when-finished", "--commit-port", port) as (address, server):
            with working(cpp_worker, "a", address, folder, "--parameters", "1000001") as process:
                assert ended(process, folder, "a") == 0
            assert server.wait(120) == 0
        assert "the run is finished: 5 commits (" in log_of(folder, "a")


def test_wrong_usage_is_one_line_with_the_fix(cpp_worker: list[str], digits: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong.json").write_text('{"task": "digits"}', encoding="utf-8")
    broken = json.loads(digits.read_text(encoding="utf-8"))
    broken["train"]["labels"][0] = 10
    (tmp_path / "broken.json").write_text(json.dumps(broken), encoding="utf-8")
    for arguments, says in (
        (("--tusk", "digits.json"), "--help"),
        (("--task", "nowhere.json"), "gemps export-task digits"),
        (("--task", "wrong.json"), "gemps export-task digits"),
        (("--task", "broken.json"), "a label that is no class"),
        (("--task", str(digits), "--server", "localhost"), "HOST:PORT"),
        (("--task", str(digits), "--delta-wire-type", "float8"), "float16"),
    ):
        done = subprocess.run([*cpp_worker, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert says in done.stderr


def test_the_conformance_kit_passes_every_scenario(cpp_worker: list[str]) -> None:
    outcomes = conformance(cpp_worker)
    assert len(outcomes) >= 38
    assert {name: outcome for name, outcome in outcomes.items() if outcome != "passed"} == {}
