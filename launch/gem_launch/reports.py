"""Progress of `launch`."""

from typing import Any

from gem_cli import status_view
from gem_cli.phases import Phases
from gem_cli.status_view import Status
from gem_cli.training.reporters import LiveReporter, Reporter
from rich.console import Console
from typing_extensions import override


class QuietReporter(Reporter):
    """Prints events; on stderr, one line for each phase of the start that takes long, since stdout is the program's."""

    def __init__(self) -> None:
        self._phases = Phases()

    @override
    def close(self) -> None:
        self._phases.end()

    @override
    def phase(self, name: str, text: str) -> None:
        self._phases.enter(name, text)

    @override
    def event(self, name: str, text: str, **_: Any) -> None:
        print(text, flush=True)

    @override
    def status(self, status: Status) -> None:
        if text := status_view.describe_waiting(status):
            self._phases.enter("first-commit" if status_view.state(status) == "TRAINING" else "workers", text)
        else:
            self._phases.end()


def reporter_for_output() -> Reporter:
    """Choose by stdout."""
    console = Console()
    if console.is_jupyter:
        from gem_launch.cell import CellReporter

        return CellReporter()
    return LiveReporter(console) if console.is_terminal and not console.is_dumb_terminal else QuietReporter()
