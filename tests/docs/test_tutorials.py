"""The tutorials do what they say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import blocks_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "own-script.md"

pytest.importorskip("torch", exc_type=ImportError)


def test_the_script_of_the_tutorial_trains_as_two_workers(tmp_path: Path) -> None:
    (script,) = (block.text for block in blocks_of(PAGE) if block.text.startswith("# worker.py\n"))
    (tmp_path / "worker.py").write_text(script, encoding="utf-8")
    train = ("train", "--workers", "2", "--steps", "300", "--eta", "0.1", "--run-dir", "run", "--sinks", "none")
    command = [str(Path(sys.executable).with_name("gemps")), *train, "--", "python", "worker.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    logs = [(tmp_path / "run" / "logs" / f"worker-{rank}.log").read_text(encoding="utf-8") for rank in range(2)]
    ends = [re.search(r"rank \d: 300 steps, accuracy (\d\.\d+)", log) for log in logs]
    assert all(end is not None and float(end[1]) > 0.9 for end in ends), logs
