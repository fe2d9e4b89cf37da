"""Which programs a line of shell starts, and with what."""

import pytest

from tests.docs.shell import SimpleCommand, simple_commands


def words(line: str) -> list[list[str]]:
    return [list(one.words) for one in simple_commands(line)]


def test_a_line_is_a_program_and_its_arguments() -> None:
    assert words("gemps work 10.77.0.1:50051   # joins") == [["gemps", "work", "10.77.0.1:50051"]]


def test_continued_lines_are_one() -> None:
    assert words("gemps serve \\\n    --insecure") == [["gemps", "serve", "--insecure"]]


def test_variables_before_a_program_are_its_own() -> None:
    (found,) = simple_commands("GEMPS_COMMITS=50000 TORCH='torch torchvision' docker compose up")
    assert found == SimpleCommand(("docker", "compose", "up"), {"GEMPS_COMMITS": "50000", "TORCH": "torch torchvision"})


def test_lists_pipes_and_loops_are_taken_apart() -> None:
    assert words("make wheels && docker compose up | tee log; until gemps status; do sleep 1; done") == [
        ["make", "wheels"],
        ["docker", "compose", "up"],
        ["tee", "log"],
        ["gemps", "status"],
        ["sleep", "1"],
        [],
    ]


@pytest.mark.parametrize("line", ["sudo -u gemps gemps status", "nohup gemps status &", "env A=1 gemps status"])
def test_a_program_that_starts_another_is_left_out(line: str) -> None:
    assert words(line) == [["gemps", "status"]]


@pytest.mark.parametrize("end", ["> status.json", ">status.json 2>&1", "2>/dev/null", "&> log"])
def test_redirections_are_no_arguments(end: str) -> None:
    assert words(f"gemps status --json {end}") == [["gemps", "status", "--json"]]


def test_quoted_commands_are_found() -> None:
    assert words("tmux new-session -d 'gemps work server:50051'")[1] == ["gemps", "work", "server:50051"]


def test_the_folder_of_a_program_does_not_matter() -> None:
    (found,) = simple_commands("/opt/gemps/bin/gemps status")
    assert found.program == "gemps"
