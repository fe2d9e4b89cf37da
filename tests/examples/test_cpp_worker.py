"""examples/workers/cpp: built from nothing, then trained, and put through the kit."""

import json
import re
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.examples.building import CPP
from tests.examples.workers import (
    COARSE,
    ROOT,
    accuracy_in,
    build,
    conformance,
    ended,
    log_of,
    serving,
    working,
)

STEPS = 400
# Of the layouts of .clang-format's many versions, the sources have that of Debian 12's.
CLANG_FORMAT = "14."

# A build from nothing takes a minute and a half on two slow cores.
pytestmark = pytest.mark.timeout(600)


def test_its_own_tests_pass(cpp_build: Path) -> None:
    said = build("ctest", "--output-on-failure", folder=cpp_build)
    assert "100% tests passed" in said
    assert int(re.search(r"out of (\d+)", said)[1]) >= 7  # type: ignore[index]


def test_its_sources_are_formatted() -> None:
    folder = ROOT / CPP
    if shutil.which("clang-format") is None or f" version {CLANG_FORMAT}" not in build(
        "clang-format", "--version", folder=folder
    ):
        pytest.skip(f"clang-format {CLANG_FORMAT}x is not installed, and others lay the sources out otherwise")
    sources = [str(path) for path in folder.glob("*/*.?pp") if path.parent.name in ("src", "tests")]
    assert len(sources) > 20
    build("clang-format", "--dry-run", "--Werror", *sources, folder=folder)


@pytest.mark.parametrize("types", [("float32", "float32"), ("bfloat16", "bfloat16")], ids=lambda types: "-".join(types))
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


def test_a_model_of_many_chunks_commits(cpp_worker: list[str], tmp_path: Path) -> None:
    with serving(tmp_path, "--steps", "5", "--exit-when-finished") as (address, server):
        with working(cpp_worker, "a", address, tmp_path, "--parameters", "1000001") as process:
            assert ended(process, tmp_path, "a") == 0
        assert server.wait(120) == 0
    assert "the run is finished: 5 commits (" in log_of(tmp_path, "a")


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
        (("--task", str(digits), "--delta-wire-type", "float16"), "float32 or bfloat16"),
    ):
        done = subprocess.run([*cpp_worker, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert says in done.stderr


def test_the_conformance_kit_passes_every_scenario_of_one_server(cpp_worker: list[str]) -> None:
    outcomes = conformance(cpp_worker)
    assert len(outcomes) >= 38
    optional = {name for name in outcomes if name.startswith("shards-")} | COARSE
    assert {name for name, outcome in outcomes.items() if outcome != "passed"} == optional
    assert all('"not spoken"' in outcomes[name] for name in optional)
