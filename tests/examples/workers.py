"""What the tests of all example workers share: tools that may be missing, servers, workers, the kit's verdicts.

A worker is a command here: it takes `--task FILE`, has the server's address and its name from the environment, and
writes a line with `accuracy NUMBER` at its end.
"""

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from tests.cli.processes import CLEAN, PATIENCE, command, gemps, started, wait_for
from tests.forms import FULL

ROOT = Path(__file__).resolve().parents[2]


def missing(what: str) -> NoReturn:
    """Skip a test because this machine lacks what an example needs; in the full form that is a failure."""
    if FULL:
        pytest.fail(f"GEMPS_TEST_FULL is set, and {what}")
    pytest.skip(what)


def build(*arguments: str, folder: Path, patience: float = 280) -> str:
    """Run a step of a build to its end; its output."""
    done = subprocess.run(
        arguments, cwd=folder, env=CLEAN, capture_output=True, text=True, timeout=patience, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, f"{' '.join(arguments)}:\n{done.stdout}{done.stderr}"
    return done.stdout


def copy_of_checkout(folder: Path, *parts: str) -> Path:
    """Copy what git has of these folders, so that nothing an earlier build left has a part in this one."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *parts],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    return folder


def export_digits(folder: Path) -> Path:
    """The file that the examples train on."""
    done = gemps("export-task", "digits", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "digits.json"


def free_port() -> int:
    """One that nobody listened on just now: a server that shall come back needs one that is known before."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


@contextmanager
def serving(folder: Path, *arguments: str, port: int = 0) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """A server: (address, process). What it logs is in `folder`/server.log, of all servers on that folder."""
    ready, log = folder / "ready.json", folder / "server.log"
    ready.unlink(missing_ok=True)
    serve = command("serve", "--bind", f"127.0.0.1:{port}", "--ready-file", str(ready), *arguments)
    with started(serve, log) as process:
        wait_for(ready.exists, process, log)
        yield json.loads(ready.read_text(encoding="utf-8"))["address"], process


@contextmanager
def working(
    worker: Sequence[str], name: str, address: str, folder: Path, *arguments: str
) -> Iterator["subprocess.Popen[bytes]"]:
    """A worker, whose output is in `folder`/NAME.log."""
    environment = {"GEMPS_SERVER": address, "GEMPS_WORKER_NAME": name}
    with started([*worker, *arguments], folder / f"{name}.log", environment) as process:
        yield process


def log_of(folder: Path, name: str) -> str:
    """What a worker has written so far."""
    return (folder / f"{name}.log").read_text(encoding="utf-8")


def ended(process: "subprocess.Popen[bytes]", folder: Path, name: str) -> int:
    """Wait for a worker's end: its exit code."""
    try:
        return process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        pytest.fail(f"{name} never ended:\n{log_of(folder, name)}")


def accuracy_in(log: str) -> float:
    """The accuracy that a worker told at its end."""
    found = re.findall(r"accuracy (\d+\.\d+)", log)
    assert found, f"no accuracy in:\n{log}"
    return float(found[-1])


def wait_for_steps(process: "subprocess.Popen[bytes]", folder: Path, name: str, steps: int) -> None:
    """Until a worker that tells every step has told so many."""
    wait_for(lambda: log_of(folder, name).count("loss ") >= steps, process, folder / f"{name}.log")


def kill(process: "subprocess.Popen[bytes]") -> None:
    """SIGKILL: no checkpoint, no goodbye."""
    process.kill()
    process.wait(PATIENCE)


def lines_of(*files: Path) -> int:
    """Their lines in all."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def conformance(worker: Sequence[str], *arguments: str) -> dict[str, str]:
    """The kit's outcome by scenario; those that did not pass tell why."""
    done = subprocess.run(
        command("conformance", "serve", "--json", *arguments, "--", *worker),
        env=CLEAN, capture_output=True, text=True, timeout=2 * PATIENCE, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert outcomes, done.stderr
    assert done.returncode in (0, 1), done.stderr
    return {one["scenario"]: one["verdict"] if one["verdict"] == "passed" else json.dumps(one) for one in outcomes}
