"""Runs the real command in real processes, and makes sure that none is left."""

import contextlib
import io
import json
import logging
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from gem_cli.main import main

from tests.waiting import eventually

PATIENCE = 120.0  # seconds: compiling kernels and importing torch on a busy machine; nothing is measured by it

# A user's own settings must not decide what a test sees, which is what he sees on a terminal.
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("GEMPS_")} | {
    "COLUMNS": "120",
    "GEMPS_LOG_FORMAT": "human",
}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gem_cli", *arguments]


def command_without(packages: Iterable[str], *arguments: str) -> list[str]:
    """The command in an environment whose imports of these packages fail."""
    blocked = f"import sys; sys.modules.update(dict.fromkeys({[*packages]})); from gem_cli.main import main; main()"
    return [sys.executable, "-c", blocked, *arguments]


def gemps(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run to the end."""
    return subprocess.run(
        command(*arguments),
        env={**CLEAN, **(env or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
    )


def gemps_here(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """As `gemps`, in this process, which has its imports: for commands that start no others."""
    written, errors, code = io.StringIO(), io.StringIO(), None
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    level = logging.root.level
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(written),
        contextlib.redirect_stderr(errors),
    ):
        for name in os.environ.keys() - CLEAN.keys():
            patch.delenv(name)
        for name, value in {**CLEAN, "GRPC_VERBOSITY": "NONE", **(env or {})}.items():
            patch.setenv(name, value)
        if cwd is not None:
            patch.chdir(cwd)
        patch.setattr(logging.root, "handlers", [])
        patch.setattr(sys, "argv", ["gemps", *arguments])
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        finally:
            for number, handler in handlers.items():  # uvloop leaves its own for SIGINT
                signal.signal(number, handler)
            logging.root.setLevel(level)
    status = code if isinstance(code, int) else int(code is not None)
    return subprocess.CompletedProcess(sys.argv, status, written.getvalue(), errors.getvalue())


def in_terminal(*arguments: str, at_terminal: bool = False, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run gemps to the end on a terminal of 40 lines; returns the exit code and everything it wrote there.

    `at_terminal`: what it reads comes from there, too.
    """
    return program_in_terminal(command(*arguments), at_terminal=at_terminal, env=env)


def program_in_terminal(
    program: list[str], *, at_terminal: bool = False, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> tuple[int, str]:
    """As `in_terminal`, for any program."""
    leader, follower = pty.openpty()
    size = {"LINES": "40", "TERM": "xterm"}
    process = subprocess.Popen(
        program,
        env={**CLEAN, **size, **(env or {})},
        cwd=cwd,
        stdin=follower if at_terminal else subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    written = b""
    with contextlib.suppress(OSError):  # how Linux tells that the other side is closed
        while part := os.read(leader, 65536):
            written += part
    os.close(leader)
    return process.wait(PATIENCE), written.decode(errors="replace")


@contextmanager
def started(
    arguments: list[str], log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run beside the test, with all output in `log`; killed with its children at the end of the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            arguments,
            env={**CLEAN, **(env or {})},
            cwd=cwd,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
    try:
        yield process
    finally:
        for one in [*children(process.pid), process]:
            one.kill()
        process.wait(PATIENCE)


@contextmanager
def served(folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Iterator[tuple[str, Any]]:
    """A server on a free port: (address, its process)."""
    ready = folder / "ready.json"
    ready.unlink(missing_ok=True)
    log = folder / "server.log"
    serve = command("serve", "--bind", "127.0.0.1:0", "--ready-file", str(ready), *arguments)
    with started(serve, log, env) as process:
        wait_for(ready.exists, process, log)
        yield json.loads(ready.read_text(encoding="utf-8"))["address"], process


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until it holds; fails when the process ends before, or never gets there."""

    def text() -> str:
        return log.read_text(encoding="utf-8", errors="replace")

    def look() -> bool:
        holds = condition()
        assert holds or process.poll() is None, f"ended with {process.returncode}:\n{text()}"
        return holds

    eventually(look, lambda: f"never happened:\n{text()}", patience=PATIENCE)


def children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def wait_until_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE)
    assert not alive


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def stop(process: subprocess.Popen[bytes]) -> int:
    """SIGTERM, and its exit code."""
    process.send_signal(signal.SIGTERM)
    return process.wait(PATIENCE)
