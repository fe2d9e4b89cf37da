"""Shows the progress of `gemps reproduce`."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from typing_extensions import override

if TYPE_CHECKING:
    from gem_reproduction.outcomes import Outcome
    from gem_reproduction.runs import Run


class View(ABC):
    """The interface of displays of finished runs. Not thread-safe."""

    def __enter__(self) -> "View":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End the display."""

    @abstractmethod
    def done(self, run: "Run", outcome: "Outcome", new: bool) -> None:
        """Show that a run has finished."""


class BarView(View):
    """A display with a progress bar."""

    def __init__(self, runs: Sequence["Run"], console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeElapsedColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
        )
        self._left = len(runs)
        self._steps = self._progress.add_task("", total=sum(run.commits for run in runs))
        self._say()

    def __enter__(self) -> View:
        self._progress.start()
        return self

    @override
    def close(self) -> None:
        self._progress.stop()

    @override
    def done(self, run: "Run", outcome: "Outcome", new: bool) -> None:
        self._left -= 1
        self._progress.update(self._steps, advance=run.commits)
        if new:
            self._progress.console.print(_line(run, outcome), highlight=False, markup=False)
        self._say()

    def _say(self) -> None:
        self._progress.update(self._steps, description=f"{self._left} runs to do")


class PlainView(View):
    """A display of plain lines."""

    def __init__(self, runs: Sequence["Run"]) -> None:
        self._total = len(runs)
        self._count = self._old = 0

    def close(self) -> None:
        """Do nothing."""

    @override
    def done(self, run: "Run", outcome: "Outcome", new: bool) -> None:
        self._count += 1
        self._old += not new
        if new:
            if self._old:
                print(f"{self._old} of {self._total} runs were done before", flush=True)
                self._old = 0
            print(f"{self._count}/{self._total}  {_line(run, outcome)}", flush=True)


def choose_view(runs: Sequence["Run"]) -> View:
    """Choose the display: a bar if standard output is a terminal, otherwise lines."""
    console = Console()
    return BarView(runs, console) if console.is_terminal and not console.is_dumb_terminal else PlainView(runs)


def _line(run: "Run", outcome: "Outcome") -> str:
    return f"{run.title()}: loss {outcome.loss:.4g} after {outcome.commits} commits, {outcome.seconds:.0f} s"
