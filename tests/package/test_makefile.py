"""What `make` would run on a machine that has nothing yet, and what there is besides."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.forms import MARKS

ROOT = Path(__file__).resolve().parents[2]
TARGETS = re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
# Modules of benchmarks that others of them use.
PARTS = {
    "__init__", "against_workers", "limited_cores", "limited_links", "picture_theme", "round_trips",
    "served",
}  # fmt: skip


@pytest.mark.parametrize("target", ["train", "test", "test-all", "install", "docs", "bench"])
def test_the_commands_are_valid_for_the_shell(target: str, tmp_path: Path) -> None:
    make = ["make", "--dry-run", "--no-print-directory", f"VENV={tmp_path / 'venv'}", target]
    script = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "-m venv" in script
    checked = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_there_are_few_targets() -> None:
    assert len(TARGETS) <= 14


def test_all_tests_are_those_of_every_mark() -> None:
    """The engines have an environment, and so a command, of their own."""
    (marks,) = re.findall(r"^ALL = (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {*marks.split(" or "), "engines"} == set(MARKS)


def test_contributing_lists_every_mark_and_every_benchmark() -> None:
    benchmarks = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - PARTS
    rows = re.findall(r"^\| (`.*?) \|", CONTRIBUTING, re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}
    assert {*MARKS, *benchmarks, "time_to_loss", "time_to_loss.goodput"} <= listed
