"""examples/workers/go: built from nothing, then trained, killed and restarted, and put through the kit."""

import re
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.processes import command, gemps, wait_for
from tests.examples.building import GO
from tests.examples.workers import (
    ROOT,
    accuracy_in,
    build,
    conformance,
    ended,
    kill,
    log_of,
    serving,
    wait_for_steps,
    working,
)

STEPS = 200
# What a worker may need, without generated code, tests, and what is there for the kit alone.
MOST_LINES = 700
NOT_COUNTED = ("worker_test.go", "conformance.go")

# gRPC is compiled from nothing, which takes two minutes on two slow cores.
pytestmark = pytest.mark.timeout(600)


def server_log(folder: Path) -> str:
    return (folder / "server.log").read_text(encoding="utf-8")


def test_its_own_tests_pass(go_folder: Path) -> None:
    assert "ok" in build("make", "test", folder=go_folder)


def test_it_is_short() -> None:
    sources = [path for path in (ROOT / GO).glob("*.go") if path.name not in NOT_COUNTED]
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in sources) <= MOST_LINES


def test_it_learns_the_digits_beside_a_python_worker(go_worker: list[str], digits: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    budget = ("--rule", "gem", "--steps", str(STEPS), "--min-workers", "2", "--exit-when-finished")
    with serving(tmp_path, *budget, "--data-dir", str(data)) as (address, server), ExitStack() as stack:
        # Importing torch may take a busy machine longer than all of the training.
        python = stack.enter_context(working(command("work", "--task", "digits"), "python", address, tmp_path))
        wait_for(lambda: "worker python joined" in server_log(tmp_path), python, tmp_path / "python.log")
        go = stack.enter_context(working(go_worker, "go", address, tmp_path, "--task", str(digits)))
        workers = {"go": go, "python": python}
        assert {name: ended(process, tmp_path, name) for name, process in workers.items()} == {"go": 0, "python": 0}
        assert server.wait(120) == 0
    log = log_of(tmp_path, "go")
    assert f"the run is finished: {STEPS} commits" in log
    assert accuracy_in(log) >= 0.93, log
    assert f"stopped at clock {1 + 2 * STEPS}" in server_log(tmp_path)
    evaluated = gemps("evaluate", str(data / "latest" / "model.safetensors"))
    assert evaluated.returncode == 0, evaluated.stderr


def test_one_that_is_killed_and_started_again_completes_its_budget(
    go_worker: list[str], digits: Path, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    again.mkdir()
    flags = ("--task", str(digits), "--log-interval", "0")
    with serving(tmp_path, "--steps", str(STEPS), "--exit-when-finished") as (address, server):
        with working(go_worker, "a", address, tmp_path, *flags) as process:
            wait_for_steps(process, tmp_path, "a", 50)
            kill(process)
        with working(go_worker, "a", address, again, *flags) as process:
            assert ended(process, again, "a") == 0
        assert server.wait(120) == 0
    assert [log_of(folder, "a").count("joined as rank 0") for folder in (tmp_path, again)] == [1, 1]
    assert accuracy_in(log_of(again, "a")) >= 0.9
    # One version for the first parameters, and one for each commit of either process.
    assert f"stopped at clock {1 + STEPS}" in server_log(tmp_path)


def test_a_model_of_many_chunks_commits(go_worker: list[str], tmp_path: Path) -> None:
    outcomes = conformance(go_worker, "--scenario", "commit-large")
    assert outcomes == {"commit-large": "passed"}


def test_a_run_that_needs_more_than_it_can_do_ends_it_with_status_2(
    go_worker: list[str], digits: Path, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        address, _ = stack.enter_context(serving(tmp_path, "--local-steps", "4"))
        process = stack.enter_context(working(go_worker, "a", address, tmp_path, "--task", str(digits)))
        assert ended(process, tmp_path, "a") == 2
    assert re.search("FEATURE: .*local-steps", log_of(tmp_path, "a"))


def test_it_connects_with_tls_and_a_token(go_worker: list[str], digits: Path, tmp_path: Path) -> None:
    assert gemps("certs", "--name", "localhost", cwd=tmp_path).returncode == 0
    secured = ("--credentials", str(tmp_path / "certs" / "server"), "--steps", "20", "--exit-when-finished")
    with serving(tmp_path, *secured) as (address, server):
        address = f"localhost:{address.rpartition(':')[2]}"
        for folder, status in (("observer", 2), ("worker", 0)):
            flags = ("--task", str(digits), "--credentials", str(tmp_path / "certs" / folder))
            with working(go_worker, folder, address, tmp_path, *flags) as process:
                assert ended(process, tmp_path, folder) == status
        assert server.wait(120) == 0
    assert "ROLE: " in log_of(tmp_path, "observer")


def test_wrong_usage_is_one_line_with_the_fix(go_worker: list[str], digits: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong.json").write_text('{"task": "digits"}', encoding="utf-8")
    for arguments, says in (
        (("--task", "nowhere.json"), "gemps export-task digits"),
        (("--task", "wrong.json"), "gemps export-task digits"),
        (("--task", str(digits), "--credentials", "nowhere"), "nowhere/ca.crt"),
    ):
        done = subprocess.run([*go_worker, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert says in done.stderr


def test_the_conformance_kit_passes_what_is_not_optional(go_worker: list[str]) -> None:
    outcomes = conformance(go_worker)
    optional = {name for name, outcome in outcomes.items() if '"not supported"' in outcome}
    assert {name for name, outcome in outcomes.items() if outcome != "passed"} == optional
    may_be_left_out = ("shards-", "delta-", "parameter-", "lane", "local-steps", "early-proceed", "dropped-")
    assert {name for name in optional if not name.startswith(may_be_left_out)} == set()
