"""The tutorials do what they say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import blocks_of

TUTORIALS = Path(__file__).resolve().parents[2] / "docs" / "tutorials"

pytest.importorskip("torch", exc_type=ImportError)


def trained(page: str, script: str, folder: Path, *options: str) -> list[str]:
    """Run a script of a page as two workers; return their logs."""
    (text,) = (one.text for one in blocks_of(TUTORIALS / page) if one.text.startswith(f"# {script}\n"))
    (folder / script).write_text(text, encoding="utf-8")
    train = ("train", "--workers", "2", *options, "--run-dir", "run", "--sinks", "none")
    command = [str(Path(sys.executable).with_name("gemps")), *train, "--", "python", script]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return [(folder / "run" / "logs" / f"worker-{index}.log").read_text(encoding="utf-8") for index in range(2)]


def test_the_script_of_the_tutorial_trains_as_two_workers(tmp_path: Path) -> None:
    logs = trained("own-script.md", "worker.py", tmp_path, "--steps", "300", "--eta", "0.1")
    ends = [re.search(r"rank \d: 300 steps, accuracy (\d\.\d+)", log) for log in logs]
    assert all(end is not None and float(end[1]) > 0.9 for end in ends), logs


@pytest.mark.parametrize(
    ("script", "library"), [("trainer.py", "transformers"), ("lit.py", "lightning"), ("loop.py", "accelerate")]
)
def test_loops_of_other_libraries_train_as_two_workers(script: str, library: str, tmp_path: Path) -> None:
    pytest.importorskip(library, exc_type=ImportError)
    logs = trained("trainer.md", script, tmp_path, "--rule", "downpour")
    ends = [re.search(r"^accuracy (\d\.\d+)", log, re.MULTILINE) for log in logs]
    assert all(end is not None and float(end[1]) > 0.9 for end in ends), logs
