"""Progress of `gemps train`.

A reporter gets phases of the start (`phase`), then the server's reports (`status`), and events at any time.
"""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from gem_server.waiting_notice import WaitingNotice
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
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
    def phase(self, name: str, text: str) -> None:
        """Show what the start of the run is busy with. A further text of the same name says more about the same."""

    @abstractmethod
    def status(self, status: Status) -> None:
        """Show a report."""


class _Elapsed:
    """A spinner, what is going on, and for how many seconds: drawn anew whenever the live view is refreshed."""

    def __init__(self, text: str) -> None:
        self._spinner = Spinner("dots")
        self._text = text
        self._since = time.monotonic()

    def __rich__(self) -> RenderableType:
        self._spinner.update(text=Text(f"{self._text} ({time.monotonic() - self._since:.0f} s)", style="dim"))
        return self._spinner


class LiveReporter(Reporter):
    """Live tables below events."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=8)
        self._live.start()
        self._waiting: tuple[str, _Elapsed] = "", _Elapsed("")

    def close(self) -> None:
        """Leave the last tables visible."""
        self._live.stop()

    @override
    def event(self, name: str, text: str, **_: Any) -> None:
        # As Text, because print(markup=False) would also draw the tables below with their markup as text.
        self._console.print(Text(text, "red" if name.endswith("_failed") else ""))

    @override
    def status(self, status: Status) -> None:
        figures = status_view.summary_panel(status, status_view.run_figures(status))
        width, height = self._console.size
        table = status_view.worker_table(status, width=width, rows=max(4, height - 9))
        self._live.update(Group(figures, table, *self._below(status_view.describe_waiting(status))))

    @override
    def phase(self, name: str, text: str) -> None:
        self._live.update(Group(*self._below(text)), refresh=True)

    def _below(self, text: str) -> list[_Elapsed]:
        """What is waited for, if anything; its seconds count on while the text stays the same."""
        if text != self._waiting[0]:
            self._waiting = text, _Elapsed(text)
        return [self._waiting[1]] if text else []


class PlainReporter(Reporter):
    """A line for each phase, and for reports on changes or every PLAIN_INTERVAL; waiting at growing intervals."""

    def __init__(self) -> None:
        self._waiting_notice = WaitingNotice()
        self._last_key: tuple[str, int, bool] | None = None
        self._last_time = 0.0
        self._last_line = ""
        self._unsaid = ""
        self._rule = ""

    @override
    def close(self) -> None:
        if self._unsaid not in ("", self._last_line):
            print(self._unsaid, flush=True)
            self._last_line = self._unsaid
        self._unsaid = ""

    @override
    def phase(self, name: str, text: str) -> None:
        print(text, flush=True)

    def event(self, name: str, text: str, **_: Any) -> None:
        """Print it; failures to stderr."""
        print(text, file=sys.stderr if name.endswith("_failed") else sys.stdout, flush=True)

    @override
    def status(self, status: Status) -> None:
        is_waiting = bool(status_view.describe_waiting(status))
        if not is_waiting and status.get("rule"):  # absent of older servers
            self._tell_rule(status_view.rule_line(status))
        key = (status_view.state(status), status_view.live_workers(status), is_waiting)
        self._unsaid = status_view.plain_line(status)
        if (seconds := self._waiting_notice.check(time.monotonic(), waits=is_waiting)) is not None:
            print(f"{self._unsaid}, for {seconds:.0f} s now", flush=True)
        if key != self._last_key or time.monotonic() - self._last_time >= PLAIN_INTERVAL:
            self._last_key, self._last_time = key, time.monotonic()
            self.close()

    def _tell_rule(self, rule: str) -> None:
        """Once the run trains, say what it does with commits: the first worker's optimizer may have decided that."""
        if rule != self._rule:
            print(f"update rule: {rule}", flush=True)
            self._rule = rule


class JsonReporter(Reporter):
    """JSON lines; stdout has nothing else."""

    def close(self) -> None:
        """Do nothing."""

    @override
    def event(self, name: str, text: str, **particulars: Any) -> None:
        self._write({"event": name, "message": text, **particulars})

    @override
    def phase(self, name: str, text: str) -> None:
        self._write({"event": "phase", "phase": name, "message": text})

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
