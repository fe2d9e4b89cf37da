"""Progress of `launch`."""

from typing import Any

from gem_cli.status_view import Status
from gem_cli.training.reporters import LiveReporter, Reporter
from rich.console import Console
from typing_extensions import override


class QuietReporter(Reporter):
    """Prints events alone."""

    def close(self) -> None:
        """Do nothing."""

    @override
    def event(self, name: str, text: str, **_: Any) -> None:
        print(text, flush=True)

    def status(self, status: Status) -> None:
        """Do nothing."""


def reporter_for_output() -> Reporter:
    """Choose by stdout."""
    console = Console()
    if console.is_jupyter:
        from gem_launch.cell import CellReporter

        return CellReporter()
    return LiveReporter(console) if console.is_terminal and not console.is_dumb_terminal else QuietReporter()
