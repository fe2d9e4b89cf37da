"""Candidate's process."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gem_conformance.wire import Event, Kind

__all__ = ["Candidate"]

_SHOWN_LINES = 12
_SHOWN_BYTES = 8192


class Candidate:
    """In a new process group, with output to a file.

    Each of `events` receives EXITED. Raises OSError if it cannot be started.
    """

    def __init__(
        self, command: Sequence[str], environment: dict[str, str], output: Path, events: Sequence[queue.Queue[Event]]
    ) -> None:
        self._output = output
        with output.open("wb") as file:
            self._process = subprocess.Popen(  # noqa: S603 - the caller's own command
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        threading.Thread(target=self._wait, args=(events,), daemon=True).start()

    def kill(self) -> None:
        """Kill the remaining process group."""
        with suppress(ProcessLookupError, PermissionError):  # already gone
            os.killpg(self._process.pid, signal.SIGKILL)

    def terminate(self) -> None:
        """Kill the process group and wait."""
        self.kill()
        self._process.wait()

    def last_lines(self) -> list[str]:
        """Output's end."""
        with self._output.open("rb") as file:
            file.seek(max(0, self._output.stat().st_size - _SHOWN_BYTES))
            text = file.read().decode("utf-8", "replace")
        return [line for line in text.splitlines() if line.strip()][-_SHOWN_LINES:]

    def _wait(self, events: Sequence[queue.Queue[Event]]) -> None:
        status = self._process.wait()
        for one in events:
            one.put(Event(Kind.EXITED, status=status))
