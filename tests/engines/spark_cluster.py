"""A Spark cluster, and programs that use it, started by the lines of a page."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from tests.waiting import eventually

PATIENCE = 300.0  # seconds: several JVMs and PyTorch on a busy machine; nothing is measured by it

# A user's own settings must not decide what a test sees; `gemps` is found as in an activated environment.
_CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("GEMPS_", "SPARK_"))} | {
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "GEMPS_LOG_FORMAT": "human",
}


def why_not() -> str:
    """Return why Spark cannot run here; empty when it can."""
    if find_spec("pyspark") is None:
        return "pyspark is not installed: pip install --group engine-spark"
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        return "there is no Java: apt-get install openjdk-17-jre-headless"
    return ""


class Program:
    """A program that a page starts in a separate terminal."""

    def __init__(self, script: str, folder: Path, log: Path) -> None:
        self._log = log
        own = {"SPARK_WORKER_DIR": str(folder / "work"), "SPARK_LOCAL_DIRS": str(folder / "local")}
        with log.open("wb") as output:
            self._process = psutil.Popen(
                ["bash", "-c", f"{script}\nwait"],
                cwd=folder,
                env=_CLEAN | own,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def wait(self) -> str:
        """Return what it has printed, once it has ended with 0."""
        assert self._process.wait(PATIENCE) == 0, self.text
        return self.text

    def wait_until(self, condition: Callable[[], Any], what: str) -> None:
        """Fail if the program ends before it holds, or it never does."""

        def look() -> bool:
            holds = bool(condition())
            assert holds or self._process.poll() is None, (
                f"ended with {self._process.returncode} before: {what}\n{self.text}"
            )
            return holds

        eventually(look, lambda: f"never came to: {what}\n{self.text}", patience=PATIENCE, interval=0.3)

    def processes(self, *words: str) -> list[psutil.Process]:
        """Its descendants with these words in their command line."""
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            found = self._process.children(recursive=True)
        return [one for one in found if set(words) <= set(_command_line(one))]

    def interrupt(self) -> None:
        """Ctrl-C."""
        for one in self.processes("launch"):
            one.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End all of it."""
        processes = [self._process, *self.processes()]
        for one in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(processes, timeout=PATIENCE)


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # it has ended
        return []


class Cluster:
    """Where a reader of the page works: `folder`."""

    def __init__(self, folder: Path, start: str) -> None:
        self.folder = folder
        self._programs: list[Program] = []
        self.nodes = self.start(start)

    def start(self, script: str) -> Program:
        """Start lines of a page."""
        program = Program(script, self.folder, self.folder / f"{len(self._programs)}.log")
        self._programs.append(program)
        return program

    def run(self, script: str) -> str:
        """Run lines of a page to their end."""
        return self.start(script).wait()

    def close(self) -> None:
        for program in reversed(self._programs):
            program.kill()
