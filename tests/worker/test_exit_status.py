"""How scripts end that let an error of their worker through: real processes beside a real server."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.processes import CLEAN, PATIENCE, gemps
from tests.worker.serving import ServerThread

# Worker 0 trains a model of four inputs; a script with another number of inputs is refused for good.
SCRIPT = """
import os, sys
import gemps
from gem_worker import ClientError
import torch
from torch import nn

def train(inputs, steps=10**9):
    model = nn.Linear(inputs, 1)
    with gemps.ParameterServer(model=model) as ps:
        for _ in range(steps):
            model(torch.ones(1, inputs)).sum().backward()
            ps.step()

"""


@pytest.fixture
def server() -> ServerThread:
    return ServerThread(commits=100)


def run(folder: Path, server: ServerThread, text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = folder / "script.py"
    path.write_text(SCRIPT + text, encoding="utf-8")
    variables = {**CLEAN, "GEMPS_SERVER": server.address, "GEMPS_WORKER_NAME": "w"} | environment
    return subprocess.run(
        [sys.executable, str(path)], env=variables, capture_output=True, text=True, timeout=PATIENCE, cwd=folder
    )


def test_a_final_refusal_ends_a_script_with_2_after_its_traceback(server: ServerThread, tmp_path: Path) -> None:
    with server:
        done = run(tmp_path, server, "train(4, steps=1)\ntrain(5)\n")
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("Traceback")
    assert "(LAYOUT_MISMATCH)" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("try:\n    train(5)\nexcept ClientError:\n    pass\n", 0),
        ("try:\n    train(5)\nexcept ClientError:\n    sys.exit(7)\n", 7),
        ("train(4, steps=1)\nraise ValueError('mine')\n", 1),
    ],
)
def test_what_a_script_catches_and_its_own_errors_end_it_as_ever(
    text: str, code: int, server: ServerThread, tmp_path: Path
) -> None:
    with server:
        done = run(tmp_path, server, "train(4, steps=1)\n" + text)
    assert done.returncode == code, done.stderr


def test_a_hook_of_the_script_prints_the_error(server: ServerThread, tmp_path: Path) -> None:
    own = "sys.excepthook = lambda kind, error, traceback: print('mine:', kind.__name__)\ntrain(4, steps=1)\ntrain(5)\n"
    with server:
        done = run(tmp_path, server, own)
    assert (done.returncode, done.stdout, done.stderr) == (2, "mine: ServerRefusedError\n", "")


def test_an_address_that_cannot_be_one_is_final(server: ServerThread, tmp_path: Path) -> None:
    with server:
        done = run(tmp_path, server, "train(4)\n", GEMPS_SERVER="localhost")
    assert done.returncode == 2
    assert "AddressError" in done.stderr


def test_an_interactive_session_goes_on(server: ServerThread, tmp_path: Path) -> None:
    text = SCRIPT + "train(4, steps=1)\ntrain(5)\nprint('goes on')\n"
    with server:
        done = subprocess.run(
            [sys.executable, "-i", "-c", "pass"],
            env={**CLEAN, "GEMPS_SERVER": server.address},
            input=text.replace("\n\n", "\n").replace("ps.step()\n", "ps.step()\n\n"),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            cwd=tmp_path,
        )
    assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr
    assert "(LAYOUT_MISMATCH)" in done.stderr


def test_gemps_train_does_not_start_such_a_script_again(tmp_path: Path) -> None:
    """Though it has joined: after another error it would."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT + "train(4, steps=1)\ntrain(5)\n", encoding="utf-8")
    folder = tmp_path / "run"
    train = ("train", "--workers=1", "--steps=40", f"--run-dir={folder}", "--", sys.executable, str(path))
    done = gemps(*train, cwd=tmp_path)
    assert done.returncode == 1
    assert "worker-0 failed with exit code 2" in done.stderr
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert (summary["restarts"], summary["exit_codes"]["worker-0"]) == ({}, 2)
