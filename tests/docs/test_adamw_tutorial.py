"""The AdamW tutorial does what it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import blocks_of

ADAMW = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "adamw.md"
# The loss begins at the log of 88 characters, 4.5; their frequencies alone give 2.9.
LEARNED = 2.6
BLOCKS = {block.language: block.text for block in blocks_of(ADAMW)}


pytest.importorskip("torch", exc_type=ImportError)


def changed(script: str, diff: str) -> str:
    """Apply a diff whose hunks are separated by `...`. A block that moves to the right ends with an empty line."""
    lines, result, shift = script.splitlines(), list[str](), 0

    def copy(shift: int) -> int:
        line = lines.pop(0)
        result.append(" " * shift + line if line else line)
        return shift if line else 0

    for hunk in diff.split("...\n"):
        rows = hunk.splitlines()
        anchor = next(row[1:].strip() for row in rows if row[0] != "+")
        while lines[0].strip() != anchor:
            shift = copy(shift)
        for row in rows:
            if row[0] != "+":
                assert lines[0].strip() == row[1:].strip()
                line = lines.pop(0)
                shift = len(row[1:]) - len(line)
            if row[0] != "-":
                result.append(row[1:])
    while lines:
        shift = copy(shift)
    return "\n".join(result) + "\n"


def held_out_loss(text: str) -> float:
    (loss,) = re.findall(r"^held-out loss (\d\.\d+)$", text, re.MULTILINE)
    return float(loss)


@pytest.mark.long
def test_the_adamw_script_of_60_lines_trains_alone(tmp_path: Path) -> None:
    assert BLOCKS["python"].count("\n") <= 60
    file = tmp_path / "train.py"
    file.write_text(BLOCKS["python"], encoding="utf-8")
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert held_out_loss(done.stdout) < LEARNED


@pytest.mark.long
@pytest.mark.timeout(600)
def test_with_5_changed_lines_at_most_the_adamw_script_trains_as_4_workers(tmp_path: Path) -> None:
    assert sum(row[0] == "+" for row in BLOCKS["diff"].splitlines()) <= 5
    (tmp_path / "train.py").write_text(changed(BLOCKS["python"], BLOCKS["diff"]), encoding="utf-8")
    (shell,) = (block for block in blocks_of(ADAMW) if block.shell)
    words = shell.commands[0].text.split()
    command = [str(Path(sys.executable).with_name("gemps")), "train", "--sinks", "none", *words[2:]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "runs" / "adamw" / "logs"
    logs = [(folder / f"worker-{index}.log").read_text(encoding="utf-8") for index in range(4)]
    assert max(map(held_out_loss, logs)) < LEARNED
