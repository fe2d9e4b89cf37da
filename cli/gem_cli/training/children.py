"""Child processes of a training: their start, their logs and their end."""

import contextlib
import functools
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeAlias

from gem_worker.client.operating_system import HAS_PARENT_SIGNAL, signal_group

from gem_cli.errors import last_lines

# One thread for each process, so that processes do not compete for the processor's cores.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
ONE_THREAD = {name: "1" for name in _THREADS if name not in os.environ}

# Number of bytes at a log's end in which the traceback of a failure is searched.
LAST_BYTES = 1 << 16

_Start: TypeAlias = "tuple[Callable[[], subprocess.Popen[Any]], Future[subprocess.Popen[Any]]]"


class Child:
    """A child process with its log. Not thread-safe."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        environment: Mapping[str, str],
        orphan_signal: signal.Signals,
    ) -> None:
        """Start the process, which gets `orphan_signal` if this process dies. Raises OSError."""
        self.name = name
        self.log = log
        self._log_start = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            start = functools.partial(
                subprocess.Popen[Any],
                tethered(command, orphan_signal),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
                process_group=0,
            )
            self._process = _in_lasting_thread(start)

    @property
    def pid(self) -> int:
        """The ID of the process and of its group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code. None while the process runs; -N if signal N ended it."""
        return self._process.poll()

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self.exit_code is None

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the process group, if running."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                signal_group(self.pid, number)

    def has_logged(self, text: str) -> bool:
        """Whether this process has written the text to its log. What earlier processes wrote does not count."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return text.encode() in log.read()

    def last_text(self) -> str:
        """Return the last LAST_BYTES that this process has written to its log."""
        with self.log.open("rb") as log:
            log.seek(max(self._log_start, self.log.stat().st_size - LAST_BYTES))
            return log.read().decode(errors="replace")

    def last_lines(self) -> list[str]:
        """Return the last lines that this process has written to its log."""
        return last_lines(self.log, start=self._log_start)

    def describe_exit(self) -> str:
        """Describe in a few words how the process ended."""
        code = self.exit_code or 0
        if code == 0:
            return "ended with exit code 0"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"

    def describe_end(self, *, quote: bool = True) -> str:
        """Describe how the process ended, with its last log lines if it failed."""
        how = self.describe_exit()
        if not self.exit_code:
            return f"{self.name} {how}; its log is {self.log}"
        if not quote:
            return f"{self.name} {how} in the same way; its log is {self.log}"
        lines = self.last_lines()
        quoted = "".join(f"\n    {line}" for line in lines)
        return f"{self.name} {how}; its log is {self.log}" + (f" and ends:{quoted}" if lines else " and is empty")


def tethered(command: Sequence[str], orphan_signal: signal.Signals) -> Sequence[str]:
    """Return a command line whose process gets the signal when this thread ends."""
    if not HAS_PARENT_SIGNAL:
        return command
    return [
        *(sys.executable, "-P", "-m", "gem_cli.training.tether", str(os.getpid()), str(orphan_signal.value)),
        *command,
    ]


def _in_lasting_thread(start: Callable[[], "subprocess.Popen[Any]"]) -> "subprocess.Popen[Any]":
    """Run `start` on a thread that does not end, because Linux sends `orphan_signal` when the starting thread ends."""
    if threading.current_thread() is threading.main_thread():
        return start()
    started: Future[subprocess.Popen[Any]] = Future()
    _starts(os.getpid()).put((start, started))
    return started.result()


@functools.cache  # a thread does not survive a fork
def _starts(_: int) -> "queue.SimpleQueue[_Start]":
    starts: queue.SimpleQueue[_Start] = queue.SimpleQueue()
    threading.Thread(target=_run_starts, args=(starts,), name="starts", daemon=True).start()
    return starts


def _run_starts(starts: "queue.SimpleQueue[_Start]") -> None:
    while True:
        start, started = starts.get()
        try:
            started.set_result(start())
        except BaseException as error:
            started.set_exception(error)


def wait(children: Sequence[Child], seconds: float, unless: Callable[[], bool] = lambda: False) -> list[Child]:
    """Wait until all have ended, `unless` is true, or the time is over. Returns those that still run."""
    deadline = time.monotonic() + seconds
    while (left := [child for child in children if child.running]) and time.monotonic() < deadline and not unless():
        time.sleep(0.02)
    return left


def terminate(children: Sequence[Child], *steps: tuple[signal.Signals, float]) -> None:
    """End the processes: for each (signal, seconds), send the signal to those that run, and wait."""
    for number, seconds in steps:
        for child in children:
            child.send_signal(number)
        children = wait(children, seconds)


def gemps(*arguments: str) -> list[str]:
    """Return the command line of a `gemps` command."""
    return [sys.executable, "-P", "-m", "gem_cli", *arguments]
