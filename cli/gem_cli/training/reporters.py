"""Progress of `gemps train`."""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text
from typing_extensions import override

from gem_cli import status_view
from gem_cli.status_view import Status
from gem_cli.strict_json import to_json

PLAIN_INTERVAL = 5.0  # while nothing changes


class Reporter(ABC):
    """Receives events. Single-threaded."""

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Stop showing progress; events may follow."""

    @abstractmethod
    def event(self, name: str, text: str, **particulars: Any) -> None:
        """Report an event."""

    @abstractmethod
    def status(self, status: Status) -> None:
        """Show a report."""


class LiveReporter(Reporter):
    """Live tables below events."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(Text("starting the server ...", style="dim"), console=console, refresh_per_second=8)
        self._live.start()

    def close(self) -> None:
        """Leave the last tables visible."""
        self._live.stop()

    @override
    def event(self, name: str, text: str, **_: Any) -> None:
        self._console.print(text, markup=False, highlight=False, style="red" if name.endswith("_failed") else None)

    @override
    def status(self, status: Status) -> None:
        figures = status_view.summary_panel(status, status_view.run_figures(status))
        width, height = self._console.size
        self._live.update(Group(figures, status_view.worker_table(status, width=width, rows=max(4, height - 8))))


class PlainReporter(Reporter):
    """A line on changes, or every PLAIN_INTERVAL."""

    def __init__(self) -> None:
        self._last_key: tuple[str, int] | None = None
        self._last_time = 0.0
        self._last_line = ""
        self._unsaid = ""

    @override
    def close(self) -> None:
        if self._unsaid not in ("", self._last_line):
            print(self._unsaid, flush=True)
            self._last_line = self._unsaid
        self._unsaid = ""

    def event(self, name: str, text: str, **_: Any) -> None:
        """Print it; failures to stderr."""
        print(text, file=sys.stderr if name.endswith("_failed") else sys.stdout, flush=True)

    @override
    def status(self, status: Status) -> None:
        key = (status_view.state(status), status_view.live_workers(status))
        self._unsaid = status_view.plain_line(status)
        if key != self._last_key or time.monotonic() - self._last_time >= PLAIN_INTERVAL:
            self._last_key, self._last_time = key, time.monotonic()
            self.close()


class JsonReporter(Reporter):
    """JSON lines; stdout has nothing else."""

    def close(self) -> None:
        """Do nothing."""

    @override
    def event(self, name: str, text: str, **particulars: Any) -> None:
        self._write({"event": name, "message": text, **particulars})

    @override
    def status(self, status: Status) -> None:
        self._write({"event": "status", "status": status})

    def _write(self, value: Mapping[str, Any]) -> None:
        print(to_json(value), flush=True)


def choose_reporter(*, as_json: bool) -> Reporter:
    """Choose a reporter by stdout."""
    if as_json:
        return JsonReporter()
    console = Console()
    return LiveReporter(console) if console.is_terminal and not console.is_dumb_terminal else PlainReporter()
