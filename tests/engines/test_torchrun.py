"""torchrun as docs/engines/torchrun.md shows it; it needs no cluster."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.processes import CLEAN, PATIENCE, served
from tests.docs.blocks import blocks_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_torchrun_starts_workers_that_are_named_by_their_rank(tmp_path: Path) -> None:
    serve, torchrun = (block.text for block in blocks_of(ROOT / "docs/engines/torchrun.md"))
    options = shlex.split(serve.replace("--data-dir state", f"--data-dir {tmp_path / 'state'}"))
    with served(tmp_path, *options[2:]) as (address, server):
        done = subprocess.run(
            ["bash", "-c", torchrun.replace("127.0.0.1:50051", address)],
            env={**CLEAN, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        assert server.wait(PATIENCE) == 0
    ended = re.findall(r"worker (\d): 200 steps", done.stdout)
    assert sorted(ended) == ["0", "1", "2", "3"]
    state = json.loads((tmp_path / "state/latest/state.json").read_text(encoding="utf-8"))
    names = [worker["name"] for worker in state["workers"]]
    assert sorted(re.fullmatch(r"torchrun-[\w-]+-(\d)", name)[1] for name in names) == ["0", "1", "2", "3"]  # type: ignore[index]
