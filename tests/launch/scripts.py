"""Python programs in interpreters of their own, outside of the checkout."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.processes import CLEAN, PATIENCE, children

# A worker without PyTorch.
JOINS = '''
import os, signal, sys, time
import numpy as np
import gemps
from gem_core import ElementType, Layout, TensorKind, TensorSpec
from gem_worker import Client, RunFinishedError

INDEX = "GEMPS_WORKER_INDEX"
LAYOUT = Layout([TensorSpec("w", (1000,), ElementType.FLOAT32, TensorKind.PARAMETER)])

def join(client):
    """Return the rank and a buffer."""
    rank = client.join().rank
    buffer = memoryview(np.ones(1000, np.float32)).cast("B")
    client.initialize(buffer)
    client.pull(buffer)
    return rank, buffer

def train(bad=-1, act=lambda: None):
    with Client(os.environ["GEMPS_SERVER"], worker_name=os.environ["GEMPS_WORKER_NAME"], layout=LAYOUT) as client:
        rank, buffer = join(client)
        delta = memoryview(np.full(1000, -0.001, np.float32)).cast("B")
        steps = 0
        try:
            while True:
                client.commit(delta, buffer, loss=1.0)
                steps += 1
                if rank == bad and steps == 2:
                    act()
        except RunFinishedError:
            pass
    return rank, steps
'''


def script(folder: Path, text: str) -> list[str]:
    """Write a program that may use JOINS; return its command line."""
    path = folder / "script.py"
    path.write_text(JOINS + text, encoding="utf-8")
    return [sys.executable, str(path)]


def run(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(script(folder, text), cwd=folder, env=CLEAN, capture_output=True, text=True, timeout=PATIENCE)


@contextmanager
def begun(folder: Path, text: str) -> Iterator[subprocess.Popen[str]]:
    """Run it beside the test, as a process group; killed with its children at the end of the block."""
    process = subprocess.Popen(
        script(folder, text),
        cwd=folder,
        env=CLEAN,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        yield process
    finally:
        for one in children(process.pid):
            one.kill()
        process.kill()
        process.wait(PATIENCE)
