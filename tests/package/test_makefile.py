"""What `make` would run on a machine that has nothing yet."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("target", ["train", "test", "install", "docs", "engines", "test-helm"])
def test_the_commands_are_valid_for_the_shell(target: str, tmp_path: Path) -> None:
    make = ["make", "--dry-run", "--no-print-directory", f"VENV={tmp_path / 'venv'}", target]
    script = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "-m venv" in script
    checked = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
