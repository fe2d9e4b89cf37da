"""The process of a candidate. It leads its own process group, so that its children end with it."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gem_conformance.grpc_server import Event, EventKind

__all__ = ["Candidate"]

_SHOWN_LINES = 12
_SHOWN_BYTES = 8192


class Candidate:
    """A candidate, which can be started again after `terminate`.

    Args:
        command: the program and its arguments.
        environment: variables in addition to those of this process.
        output: the file to which standard output and standard error are appended.
        events: one queue for each server of the scenario. Each gets an EXITED event when the process ends by itself.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], output: Path, events: Sequence[queue.Queue[Event]]
    ) -> None:
        self._command = command
        self._environment = {**os.environ, **environment}
        self._output = output
        self._events = events
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process. Raises OSError if the command cannot be run."""
        with self._output.open("ab") as file:
            self._process = process = subprocess.Popen(  # noqa: S603 - the caller's own command
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )
        threading.Thread(target=self._wait, args=(process,), daemon=True).start()

    def send_sigterm(self) -> None:
        """Ask the process group to end, as an operator or a batch system does. Does not wait."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill what is left of the process group by SIGKILL. Does not wait."""
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Kill the process group and wait for the process. This end causes no EXITED event."""
        self.kill()
        process, self._process = self._process, None
        if process is not None:
            process.wait()

    def last_lines(self) -> list[str]:
        """Return the last lines of the output that are not blank, at most 12 lines from at most 8 KiB."""
        with self._output.open("rb") as file:
            file.seek(max(0, self._output.stat().st_size - _SHOWN_BYTES))
            text = file.read().decode("utf-8", "replace")
        return [line for line in text.splitlines() if line.strip()][-_SHOWN_LINES:]

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):  # raised when the process group has ended already
                os.killpg(self._process.pid, number)

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        if process is self._process:
            for queue_of_server in self._events:
                queue_of_server.put(Event(EventKind.EXITED, status=status))
