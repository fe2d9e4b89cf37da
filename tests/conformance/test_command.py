"""Tests of the command `gemps conformance`: its output for people and programs, its exit statuses and its processes."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from gem_conformance import SCENARIOS, play_scenarios
from gem_conformance.faults import FaultName
from gem_conformance.scenarios import Scenario

from tests.cli.processes import gemps_here
from tests.conformance.candidates import write
from tests.conformance.mutants import MUTANTS
from tests.waiting import eventually

# The scenarios that even the simplest worker must pass.
BASIC = ["initialise", "already-initialised", "pull", "commit-small", "commit-large", "commit-huge", "finished"]
BASIC += ["finished-before"]
ROOT = Path(__file__).resolve().parents[2]
REFERENCE = [sys.executable, str(ROOT / "examples/workers/python/reference_worker.py")]


def gemps(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gem_cli", "conformance", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


def test_list_has_one_line_for_each_scenario() -> None:
    done = gemps("list")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(SCENARIOS)
    starts = {line.index(SCENARIOS[line.split()[0]].about) for line in done.stdout.splitlines()}
    assert len(starts) == 1


def test_list_shows_the_steps_of_scenarios() -> None:
    lines = gemps_here("conformance", "list", "--steps").stdout.splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("torn-reply "))
    shown = [line.strip() for line in lines[at + 1 : at + 7]]
    assert shown[:4] == ["others trained", "commit", "apply commit", "send reply (break_after 3)"]
    assert shown[4:] == ["commit", "last commit"]


def test_list_of_faults_explains_each_fault_in_one_line() -> None:
    found = dict(line.split(maxsplit=1) for line in gemps_here("conformance", "list", "--faults").stdout.splitlines())
    assert found == {fault.name: fault.value for fault in FaultName}
    lines = [json.loads(line) for line in gemps_here("conformance", "list", "--faults", "--json").stdout.splitlines()]
    assert {one["fault"]: one["about"] for one in lines} == found


def test_json_list_marks_the_basic_scenarios() -> None:
    lines = [json.loads(line) for line in gemps_here("conformance", "list", "--json").stdout.splitlines()]
    assert [one["scenario"] for one in lines if one["basic"]] == BASIC
    assert not any(one["optional"] for one in lines if one["basic"])


def test_the_reference_worker_passes_the_basic_scenarios() -> None:
    done = gemps("serve", "--basic", "--", *REFERENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [line.split() for line in done.stdout.splitlines()[: len(BASIC)]]
    assert sorted(found) == sorted([name, "passed"] for name in BASIC)
    assert done.stdout.splitlines()[-1] == f"{len(BASIC)} passed"


def test_a_fault_is_shown_with_its_place_and_the_last_lines_of_the_worker() -> None:
    script = "import sys; print('first words'); sys.exit('what is this?')"
    done = gemps("serve", "--scenario", "pull", "--scenario", "delta-bfloat16", "--", sys.executable, "-c", script)
    assert done.returncode == 1
    assert "pull            failed  STOPPED" in done.stdout
    for text in ("expected  Join", "came      the end of the process, exit status 1", "proto/gemps/v1/session.proto"):
        assert text in done.stdout
    assert "  | first words\n  | what is this?\n" in done.stdout
    assert done.stdout.splitlines()[-1] == "2 failed"


def test_a_worker_that_exits_with_3_does_not_support_an_optional_scenario() -> None:
    done = gemps("serve", "--scenario", "delta-bfloat16", "--", sys.executable, "-c", "raise SystemExit(3)")
    assert done.returncode == 0
    assert done.stdout.splitlines() == ["delta-bfloat16  not supported", "", "1 not supported"]


def test_json_output_has_one_object_for_each_scenario(tmp_path: Path) -> None:
    (mutant,) = (one for one in MUTANTS if one.name == "repeats-without-checksum")
    worker = write(mutant, Path(REFERENCE[-1]), tmp_path)
    done = gemps("serve", "--json", "--scenario", "dropped-reply", "--", sys.executable, str(worker))
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    assert done.returncode == 1
    assert (found["scenario"], found["verdict"], found["step"]) == ("dropped-reply", "failed", "5 of 6: commit")
    assert (found["fault"], found["place"]) == ("NO_CHECKSUM_IN_REPEAT", "proto/gemps/v1/commit.proto")
    assert found["after"].startswith("the kit had broken the stream of commit 2 after 3348 bytes; since then: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--scenario", "commit-smal"],
            "there is no scenario commit-smal: did you mean commit-small? gemps conformance",
        ),
        (["--scenario", "x"], "there is no scenario x: gemps conformance list shows them all"),
        (["--scenario", "restart", "--basic"], "none of these scenarios is a basic one"),
        (["--", "no-such-worker"], "'no-such-worker' is no program"),
        (["--listen", "50051"], "--listen 50051: write HOST:PORT"),
    ],
)
def test_wrong_usage_is_explained_with_the_fix(arguments: list[str], words: str) -> None:
    done = gemps_here("conformance", "serve", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(("mode", "words"), [(0o600, "may not be executed: chmod +x "), (0o700, "such as #!/bin/sh")])
def test_a_file_that_cannot_be_started_is_explained_with_the_fix(mode: int, words: str, tmp_path: Path) -> None:
    script = tmp_path / "worker"
    script.write_text("exit 1\n", encoding="utf-8")
    script.chmod(mode)
    done = gemps("serve", "--scenario", "pull", "--", str(script))
    assert done.returncode == 2
    assert words in done.stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_no_candidate_is_left_running_when_the_kit_gets_a_signal(tmp_path: Path, number: int, status: int) -> None:
    script = "import os, pathlib, time; pathlib.Path(str(os.getpid())).touch(); time.sleep(600)"
    command = [
        sys.executable,
        "-m",
        "gem_cli",
        "conformance",
        "serve",
        "--jobs",
        "2",
        "--",
        sys.executable,
        "-c",
        script,
    ]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as kit:
        eventually(lambda: len(list(tmp_path.iterdir())) == 2)
        kit.send_signal(number)
        output, errors = kit.communicate(timeout=60)
    assert (kit.returncode, output, errors) == (status, "", "")
    eventually(lambda: not any(psutil.pid_exists(int(one.name)) for one in tmp_path.iterdir()))


def test_no_candidate_is_left_running_when_scenarios_are_still_being_submitted(tmp_path: Path) -> None:
    started = tmp_path / "pid"

    def interrupted() -> Iterator[Scenario]:
        yield SCENARIOS["pull"]
        eventually(lambda: started.exists() and started.read_text())
        raise KeyboardInterrupt

    script = f"import os, pathlib, time; pathlib.Path({str(started)!r}).write_text(str(os.getpid())); time.sleep(600)"
    with pytest.raises(KeyboardInterrupt):
        play_scenarios(interrupted(), [sys.executable, "-c", script], jobs=1)
    assert not psutil.pid_exists(int(started.read_text()))


def test_without_a_command_it_waits_for_workers_that_a_person_starts() -> None:
    command = [sys.executable, "-m", "gem_cli", "conformance", "serve", "--listen", "127.0.0.1:0"]
    chosen = ("pull", "finished")
    for name in chosen:
        command += ["--scenario", name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as kit:
        watchdog = threading.Timer(120, kit.kill)
        watchdog.start()
        assert kit.stderr is not None
        assert kit.stdout is not None
        for name in chosen:
            assert kit.stderr.readline().startswith(f"{name}: ")
            environment = dict(kit.stderr.readline().strip().split("=", 1) for _ in range(3))
            assert set(environment) == {"GEMPS_SERVER", "GEMPS_WORKER_NAME", "GEMPS_CONFORMANCE"}
            subprocess.run(REFERENCE, check=True, timeout=60, env={**os.environ, **environment}, capture_output=True)
        assert kit.stdout.read() == "pull      passed\nfinished  passed\n\n2 passed\n"
        assert kit.wait() == 0
        watchdog.cancel()
