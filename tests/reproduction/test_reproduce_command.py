"""The real command, on runs that are as small as they can be."""

import json
import signal
from pathlib import Path

import pytest
from gem_reproduction.figures import ALL, choose
from gem_reproduction.reproduction import runs_of
from gem_reproduction.runs import Scope

from tests.cli.processes import PATIENCE, children, command, gemps, gemps_here, started, wait_for, wait_until_gone

# The fewest steps in which the claims of figure 3 hold; nothing else is said to hold for so few.
SMALL = ("--model", "mlp", "--seeds", "1", "--steps", "4", "--jobs", "2")


@pytest.mark.long
def test_figures_are_run_drawn_judged_and_written_down_and_share_their_runs(tmp_path: Path) -> None:
    done = gemps("reproduce", "3", "6", "9", *SMALL, "--output", str(tmp_path))
    assert done.stderr == ""
    assert "3 · pi against worker steps" in done.stdout
    assert "met  the mean of pi falls from 5 to 10, 20 and 30 workers" in done.stdout
    assert "NOT MET  with 20 workers DOWNPOUR's L is at least 10 times that of GEM" in done.stdout
    assert done.returncode == 1, "four steps are not enough for DOWNPOUR to fail, and that must hold"
    found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert list(found["figures"]) == ["3", "6", "9"]
    assert found["scope"]["steps"] == 4
    for name, figure in found["figures"].items():
        picture = (tmp_path / figure["picture"]).read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert len(picture) <= 100_000
        assert all(verdict["numbers"] for verdict in figure["verdicts"]), name

    before = {path: path.stat().st_ino for path in (tmp_path / "runs").iterdir()}
    again = gemps("reproduce", "3", "1a", *SMALL, "--output", str(tmp_path))
    assert again.returncode == 0, "three claims that hold from the first steps on"
    assert "gem, " not in again.stdout, "no line of a run that was done just now"
    assert {path: path.stat().st_ino for path in (tmp_path / "runs").iterdir()} == before


@pytest.mark.long
def test_what_was_interrupted_goes_on_where_it_was(tmp_path: Path) -> None:
    # Several seconds of runs, of which the longest comes first.
    options = ("--model", "mlp", "--seeds", "1", "--steps", "40", "--jobs", "1", "--output", str(tmp_path))
    arguments = ("reproduce", "3", *options)
    log = tmp_path / "log"
    with started(command(*arguments), log) as process:
        runs = tmp_path / "runs"
        wait_for(lambda: runs.is_dir() and any(runs.glob("*.json")), process, log)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    assert "Traceback" not in log.read_text(encoding="utf-8")
    kept = {path: path.stat().st_ino for path in runs.glob("*.json")}
    assert 0 < len(kept) < 4
    again = gemps(*arguments)
    assert again.returncode == 0, again.stderr
    assert f"{len(kept)} of 4 runs were done before" in again.stdout
    assert {path: path.stat().st_ino for path in kept} == kept
    assert len(list(runs.glob("*.json"))) == 4


def test_processes_of_a_killed_command_end_with_it(tmp_path: Path) -> None:
    arguments = ("reproduce", "3", "--model", "mlp", "--seeds", "9", "--steps", "40")
    log = tmp_path / "log"
    with started(command(*arguments, "--jobs", "2", "--output", str(tmp_path)), log) as process:
        wait_for(lambda: any((tmp_path / "runs").glob("*.json")), process, log)
        others = children(process.pid)
        assert len(others) >= 2
        process.kill()
        process.wait(PATIENCE)
        wait_until_gone(others)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("3", "--task", "cifar10"), "--task cifar10: choose one of digits, digits28, fashion-mnist, mnist"),
        (("3", "--model", "alexnet"), "--model alexnet: choose one of cnn, mlp"),
        (("3", "--rule-settings", "momentum"), "--rule-settings: 'momentum' is not NAME=VALUE with a number"),
        (
            ("3", "--rule-settings", "mu=0"),
            "--rule-settings: rule 'gem' has no setting 'mu'; its settings are: momentum",
        ),
        (
            ("3", "--task", "mnist", "--data", "nowhere"),
            "--data nowhere: the task mnist expects nowhere/MNIST/raw/train-",
        ),
        (
            ("3", "--task", "fashion-mnist", "--data", "nowhere"),
            "install Debian's package (apt-get install dataset-fashion-mnist) and leave --data out",
        ),
        (("7", "--images", "nowhere"), "--images nowhere: there is no folder nowhere/train with a folder a class"),
    ],
)
def test_what_makes_no_sense_is_told_before_anything_is_written(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    done = gemps_here("reproduce", *arguments, "--output", str(tmp_path / "out"))
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = gemps_here("reproduce", "3", *SMALL, "--output", str(tmp_path / "file"))
    assert done.returncode == 1
    assert done.stderr.startswith(f"gemps: {tmp_path / 'file'} cannot be written: File exists; choose another --output")


def test_the_quick_form_of_all_is_as_short_as_was_promised() -> None:
    """Steps, not seconds: two slow cores did 400 steps of the CNN a second, so these take under 14 minutes there."""
    runs = runs_of(choose([ALL]), Scope(quick=True, steps=200))
    small = sum(run.commits for run in runs if not run.large)
    large = sum(run.commits for run in runs if run.large)
    assert small <= 330_000
    assert large <= 100
    assert all(run.settings.steps >= 200 for run in runs if not run.large)
