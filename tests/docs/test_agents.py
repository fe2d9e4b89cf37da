"""AGENTS.md's edits, applied to three ordinary training scripts, give workers that train."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.cli.processes import CLEAN, PATIENCE, gemps
from tests.docs.blocks import blocks_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "AGENTS.md"
PORTED = Path(__file__).with_name("ported")
SCRIPTS = sorted(path.name for path in (PORTED / "before").glob("*.py"))
CHANCE = 2.30  # log of 10 classes
scripts = pytest.mark.parametrize("script", SCRIPTS)


@dataclass(frozen=True)
class Edit:
    """A line to find, with `...` for any text, and the lines that replace it."""

    find: str
    replace: tuple[str, ...]

    def applied_to(self, line: str) -> list[str] | None:
        """The lines in its place, or None if it is another line."""
        indent = line[: len(line) - len(line.lstrip())]
        pattern = "(.*)".join(map(re.escape, self.find.split("...")))
        found = re.fullmatch(pattern, line.lstrip())
        if found is None:
            return None
        kept = iter(found.groups())
        return [indent + re.sub(r"\.\.\.", lambda _: next(kept), one) for one in self.replace]


def edits() -> list[Edit]:
    """The page's diff block: edits are separated by empty lines, comments do not count."""
    (text,) = (block.text for block in blocks_of(PAGE) if block.language == "diff")
    found = []
    for part in text.split("\n\n"):
        lines = [line for line in part.splitlines() if not line.startswith("#")]
        assert [line[0] for line in lines] == ["-"] + ["+"] * (len(lines) - 1), part
        found.append(Edit(lines[0][1:], tuple(line[1:] for line in lines[1:])))
    return found


def indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


def port(source: str, used: set[Edit]) -> str:
    """The script after the edits; what is nested under a replaced line moves as far as the last replacement."""
    text = "".join(line + "\n" for line in ported(source.splitlines(), edits(), used))
    return text if "scheduler = " in source else text.replace(", scheduler=scheduler", "")


def ported(lines: list[str], known: list[Edit], used: set[Edit]) -> Iterator[str]:
    shifts: list[tuple[int, int]] = []  # (indentation of the line above, how far its block moves)
    for line in lines:
        while shifts and line and not is_nested(line, shifts[-1][0]):
            shifts.pop()
        moved = " " * sum(by for _, by in shifts) * bool(line) + line
        for edit in known:
            replaced = edit.applied_to(moved)
            if replaced is not None:
                used.add(edit)
                yield from replaced
                if replaced and (by := indentation(replaced[-1]) - indentation(moved)):
                    shifts.append((indentation(line), by))
                break
        else:
            yield moved


def is_nested(line: str, under: int) -> bool:
    return indentation(line) > under or (indentation(line) == under and line.lstrip()[0] in ")]}")


@scripts
def test_the_edits_of_the_page_turn_before_into_after(script: str) -> None:
    before, after = ((PORTED / kind / script).read_text(encoding="utf-8") for kind in ("before", "after"))
    assert port(before, set()) == after


def test_each_edit_of_the_page_is_needed_by_a_script() -> None:
    used: set[Edit] = set()
    for script in SCRIPTS:
        port((PORTED / "before" / script).read_text(encoding="utf-8"), used)
    assert len(SCRIPTS) == 3
    assert used == set(edits())


@pytest.mark.long
@scripts
def test_script_learns_by_itself_before_it_is_ported(script: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(PORTED / "before" / script), *arguments_of(script, tmp_path)],
        env=CLEAN | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert accuracy_in(done.stdout) > 0.85


@pytest.mark.long
@scripts
def test_ported_script_trains_with_two_workers_by_the_command_of_the_page(script: str, tmp_path: Path) -> None:
    words = command_of_the_page()
    at = words.index("SCRIPT.py")
    words[at:] = [str(PORTED / "after" / script), *arguments_of(script, tmp_path)]
    folder = tmp_path / "run"
    done = gemps("train", "--run-dir", str(folder), *words[2:])
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["exit_codes"] == {"server": 0, "worker-0": 0, "worker-1": 0}
    assert summary["commits"] == 2 * int(words[words.index("--steps") + 1])
    assert summary["training_loss"] < 0.5 * CHANCE
    for worker in ("worker-0", "worker-1"):
        log = (folder / "logs" / f"{worker}.log").read_text(encoding="utf-8")
        assert accuracy_in(log) > 0.85
        assert "warning" not in log.lower()
    assert load_file(folder / "model.safetensors")
    assert bool(arguments_of(script, tmp_path)) == (tmp_path / "best.pt").exists()


def command_of_the_page() -> list[str]:
    lines = [command.text for block in blocks_of(PAGE) if block.shell for command in block.commands]
    (line,) = (one for one in lines if one.startswith("gemps train"))
    return shlex.split(line)


def arguments_of(script: str, folder: Path) -> list[str]:
    return [str(folder / "best.pt")] if script == "batchnorm_checkpoint.py" else []


def accuracy_in(output: str) -> float:
    return float(re.findall(r"test accuracy ([\d.]+)", output)[-1])
