"""`gemps simulate`."""

import time
from abc import ABC, abstractmethod
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from gem_server.waiting_notice import WaitingNotice
from gem_simulator.errors import SimulationError
from gem_simulator.settings import SimulationSettings
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from typing_extensions import override

from gem_cli.commands.checks import check_model
from gem_cli.commands.known import KNOWN
from gem_cli.errors import USAGE, CommandError
from gem_cli.extras import require
from gem_cli.options import Given, OptionGroup, flag, with_options
from gem_cli.phases import Phases, print_to_stderr
from gem_cli.strict_json import to_json

if TYPE_CHECKING:
    from gem_simulator import Commit, SimulationResult

_OPTIONS = OptionGroup(SimulationSettings, "Simulation")
_OF_FOLLOWING = frozenset(
    {"task", "model", "dataset_dir", "download", "image_size", "text", "context", "layers", "width", "heads"}
)

_COMMON = (
    "workers", "seed", "steps", "commits", "seconds", "rule", "eta", "direction", "task", "model", "batch_size",
    "order", "compute_time", "output", "as_json",
)  # fmt: skip


@with_options(_OPTIONS, known=KNOWN, common=_COMMON)
def simulate(
    given: Given,
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep a trace, as gemps serve --record does: gemps replay applies its commits again, and --follow "
            "computes its gradients, too.",
        ),
    ] = None,
    follow: Annotated[
        Path | None,
        typer.Option(
            metavar="TRACE",
            help="Do a recorded run again: compute its workers' gradients anew, apply them in the recorded order, and "
            "compare each with what was recorded, bit for bit. All but task, model and data is in the trace.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write there: result.json, commits.npz (every commit, in columns) and model.safetensors.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object, for programs.")] = False,
) -> None:
    """Simulate many workers and their server in this process, on a virtual clock.

    The same settings give the same parameters, bit for bit.

    [bold]Examples[/bold]

      gemps simulate --workers 200 --steps 150

      gemps simulate --workers 16 --seconds 300 --slow 0-7x4 --die 15@100 --evaluate-every 500

      gemps simulate --follow run.trace
    """
    if follow is not None and record is not None:
        raise CommandError("--follow does a recorded run again; give it or --record, not both", USAGE)
    if follow is not None and not follow.is_file():
        raise CommandError(f"there is no file {follow}: give what --record FILE wrote", USAGE)
    settings = given.load(SimulationSettings)
    if follow is not None:
        _refuse_with_follow(given)
    elif not settings.has_end:
        raise CommandError("there is no end: give --steps, --commits or --seconds, such as --steps 150", USAGE)
    check_model(settings.model, settings.task)
    require("lab", "simulate", "torch", "numba", "safetensors")
    with _shown() as shown:
        shown.phase("importing PyTorch")
        from gem_worker import TaskError

        from gem_core import RuleError

        try:
            result = _followed(follow, settings, shown) if follow is not None else _simulated(settings, record, shown)
        except RuleError as error:
            raise CommandError(str(error), USAGE) from None
        except (SimulationError, TaskError) as error:
            raise CommandError(str(error)) from None
    if output is not None:
        _write_result(result, output)
    if as_json:
        print(to_json(result.summary() | {"evaluations": [asdict(one) for one in result.evaluations]}))
    else:
        print("\n".join(_summary(result, follow, record, output)))
    if follow is not None and not result.compared_end:
        raise CommandError(
            "the trace has no end to compare the parameters with: the server was killed, or the file was cut off"
        )


def _refuse_with_follow(given: Given) -> None:
    others = set(SimulationSettings.model_fields) - _OF_FOLLOWING
    named = [name for name in sorted(others) if name in given.values(SimulationSettings)]
    if named:
        flags = ", ".join(flag(name) for name in named)
        raise CommandError(f"--follow takes {flags} from the trace: leave that out", USAGE)


_PREPARING = "loading the data and the rule's kernels, which Numba compiles once on a machine"


def _simulated(settings: SimulationSettings, record: Path | None, shown: "_Shown") -> "SimulationResult":
    from gem_simulator import simulate as run

    shown.phase(_PREPARING)
    shown.total = min(filter(None, (settings.commits, settings.steps * settings.workers)), default=None)
    return run(settings, record=record, on_commit=shown.commit)


def _followed(trace: Path, settings: SimulationSettings, shown: "_Shown") -> "SimulationResult":
    from gem_simulator import read_recorded
    from gem_simulator import replay_recording as run
    from gem_worker.tasks import create_task

    shown.phase(_PREPARING)
    recorded = read_recorded(trace)
    task = create_task(settings.task, settings.task_options())
    shown.total = recorded.commits
    return run(recorded, task=task, model=settings.model, on_commit=shown.commit)


class _Shown(ABC):
    """Progress on stderr. `total`: commits of the whole simulation, if known."""

    def __init__(self) -> None:
        self.total: int | None = None

    @abstractmethod
    def phase(self, text: str) -> None:
        """Show what is done before the first commit."""

    @abstractmethod
    def commit(self, commit: "Commit") -> None:
        """Show the figures of a commit that was simulated just now."""

    @abstractmethod
    def close(self) -> None:
        """Remove what is on the screen, and show nothing from now on."""

    def __enter__(self) -> "_Shown":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Bar(_Shown):
    """A bar that is drawn again and again on a terminal, and gone at the end."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task("", total=None)
        self._progress.start()

    @override
    def phase(self, text: str) -> None:
        self._progress.update(self._task, description=text)

    @override
    def commit(self, commit: "Commit") -> None:
        self._progress.update(self._task, advance=1, total=self.total, description=_describe(commit))

    @override
    def close(self) -> None:
        self._progress.stop()


class _Lines(_Shown):
    """Lines in a file or pipe: phases that take long, and then the newest commit at growing intervals."""

    def __init__(self) -> None:
        super().__init__()
        self._phases = Phases()
        self._notice = WaitingNotice()
        self._commits = 0

    @override
    def phase(self, text: str) -> None:
        self._phases.enter(text, text)

    @override
    def commit(self, commit: "Commit") -> None:
        if not self._commits:
            self._phases.end()
        self._commits += 1
        if self._notice.check(time.monotonic(), waits=True) is not None:
            of = "" if self.total is None else f" of {self.total}"
            print_to_stderr(f"simulating: {self._commits}{of} commits, {_describe(commit)}")

    @override
    def close(self) -> None:
        self._phases.end()


def _shown() -> _Shown:
    console = Console(stderr=True)
    return _Bar(console) if console.is_terminal and not console.is_dumb_terminal else _Lines()


def _describe(commit: "Commit") -> str:
    loss = "-" if commit.loss is None else f"{commit.loss:.3g}"
    return f"{commit.at:.1f} virtual seconds  loss {loss}  staleness {commit.staleness}"


def _write_result(result: "SimulationResult", folder: Path) -> None:
    import numpy as np
    from gem_server.durability.checkpoint import Checkpoint, write_tensors
    from gem_simulator.results import COLUMNS

    whole = Checkpoint(result.layout, result.clock, result.parameters, result.buffers, {})
    document: dict[str, Any] = {"summary": result.summary(), "settings": result.settings}
    document["evaluations"] = [asdict(one) for one in result.evaluations]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder, whole)
        (folder / "result.json").write_text(to_json(document, indent=2) + "\n", encoding="utf-8")
        columns: dict[str, Any] = {name: result.history.column(name) for name in COLUMNS}
        np.savez_compressed(folder / "commits.npz", **columns)
    except OSError as error:
        raise CommandError(f"--output {folder}: {error.strerror}; choose another folder") from None


def _summary(result: "SimulationResult", follow: Path | None, record: Path | None, output: Path | None) -> list[str]:
    found = result.summary()
    mean, last = found["mean"], found["last_tenth"]
    lines = [
        f"after {one.commits} commits, {one.at:.6g} virtual seconds: loss {one.training_loss:.4f}, held out "
        f"{one.test_loss:.4f}, accuracy {one.accuracy:.4f}"
        for one in result.evaluations[:-1]
    ]
    bits = found["bits_per_character"]
    lines += [
        f"{found['commits']} commits in {found['virtual_seconds']:.6g} virtual seconds, fairness "
        f"{found['jain_index']:.4f}",
        f"loss over all training samples {found['training_loss']:.4f}; held out: loss {found['test_loss']:.4f}, "
        f"accuracy {found['accuracy']:.4f}{'' if bits is None else f', {bits:.4f} bits a character'}",
    ]
    if result.commits:
        lines.append(
            f"staleness {mean['staleness']:.1f}, pi {mean['mean_pi']:.3f}, blocked "
            f"{100 * mean['blocked_fraction']:.1f} %; in the last tenth of the commits {last['staleness']:.1f}, "
            f"{last['mean_pi']:.3f}, {100 * last['blocked_fraction']:.1f} %, and the batches' loss {last['loss']:.4f}"
        )
    if found["diverged"]:
        lines.insert(0, "diverged: 100 gradients of a worker in a row were not finite; choose a smaller --eta")
    lines.append(f"the last parameters: clock {result.clock}, SHA-256 {result.digest}")
    if follow is not None:
        lines.append(f"the same deltas, bit for bit, as in {follow}")
        lines += ["the same parameters, bit for bit, as what the server ended with"] if result.compared_end else []
    lines.append(f"memory of this process at its peak: {found['peak_memory_bytes'] / 2**20:.0f} MiB")
    lines += [f"trace written to {record}"] if record is not None else []
    lines += [f"written to {output}"] if output is not None else []
    return lines
