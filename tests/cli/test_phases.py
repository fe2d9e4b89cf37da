"""What a program says before its first result: a line for each phase that lasts, and none for one that does not."""

import re
from pathlib import Path

import pytest
from gem_cli import phases
from gem_cli.phases import Phases

from tests.cli.processes import gemps, in_terminal
from tests.waiting import eventually


def test_a_phase_that_lasts_is_said_by_itself_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "SECONDS", 0.0)
    said: list[str] = []
    shown = Phases(said.append)
    shown.enter("workers", "0 of 2 workers")
    eventually(lambda: said)
    shown.enter("workers", "1 of 2 workers")
    shown.elapse("workers")
    shown.end()
    assert said == ["0 of 2 workers"]


def test_a_phase_that_is_over_in_time_is_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "SECONDS", 3600.0)
    said: list[str] = []
    shown = Phases(said.append)
    shown.enter("server", "starting")
    shown.enter("workers", "0 of 2 workers")
    shown.enter("workers", "1 of 2 workers")
    shown.elapse("server")  # too late
    assert said == []
    shown.elapse("workers")
    assert said == ["1 of 2 workers"]  # the newest text
    shown.enter("commit", "no commit yet")
    shown.end()
    shown.elapse("commit")
    assert said == ["1 of 2 workers"]


def test_phases_go_to_stderr_because_stdout_is_the_users(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Phases()
    shown.enter("import", "importing PyTorch")
    shown.elapse("import")
    shown.end()
    assert capsys.readouterr() == ("", "gemps: importing PyTorch\n")


SIMULATION = ("simulate", "--workers=2", "--steps=5")


@pytest.mark.long
def test_a_simulation_in_a_file_says_what_it_does_in_lines_on_stderr(tmp_path: Path) -> None:
    done = gemps(*SIMULATION, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("{")
    assert re.fullmatch(r"(gemps: (importing PyTorch|loading the data[^\r\n]*)\n){0,2}", done.stderr)


@pytest.mark.long
def test_a_simulation_on_a_terminal_shows_its_phases_from_the_start() -> None:
    code, written = in_terminal(*SIMULATION)
    assert code == 0, written
    assert written.index("importing PyTorch") < written.index("loading the data") < written.index("10 commits in")
