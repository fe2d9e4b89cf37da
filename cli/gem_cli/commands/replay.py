"""The command `gemps replay`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from gem_cli.errors import USAGE, CommandError
from gem_cli.extras import require
from gem_cli.strict_json import to_json

if TYPE_CHECKING:
    from gem_server.durability.checkpoint import Checkpoint

    from gem_trace import Replayed


def replay(
    trace: Annotated[Path, typer.Argument(metavar="FILE", help="The trace that gemps serve --record FILE wrote.")],
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA_DIR",
            help="Compare with what this data directory of a server holds, at its clock. The server need not run; at "
            "--durability commit the log counts too.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write the last parameters there, as model.safetensors."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object, for programs.")] = False,
) -> None:
    """Apply a recorded run's commits again, and check that the parameters are bit-identical.

    Exit code 1: something differs, the trace is damaged, or it has no final parameters.

    [bold]Examples[/bold]

      gemps replay run.trace --against state --output replayed
    """
    require("server", "replay", "numba", "safetensors")
    from gem_trace import ReplayError
    from gem_trace import replay as replay_trace
    from gem_trace.format import digest

    if not trace.is_file():
        raise CommandError(f"there is no file {trace}: give what gemps serve --record FILE wrote", USAGE)
    saved = _recovered(against) if against is not None else None
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("commits", total=None)
        try:
            found = replay_trace(
                trace,
                against=(saved.clock, digest(saved.parameters, saved.buffers)) if saved is not None else None,
                on_commit=lambda clock: progress.update(task, advance=1),
            )
        except ReplayError as error:
            raise CommandError(str(error)) from None
        except OSError as error:
            raise CommandError(f"{trace} cannot be read: {error.strerror}") from None
    if output is not None:
        _write_statistics(found, output)
    compared = _compared(found, against, saved)
    if as_json:
        print(to_json(_figures(found) | {"compared_with": compared}))
    else:
        print("\n".join([*_summary(trace, found), *(f"the same, bit for bit, as {one}" for one in compared)]))
        if output is not None:
            print(f"written to {output}")
    if not compared:
        raise CommandError(
            "there is nothing to compare the end with, since the trace has none (the server was killed, or the file "
            "was cut off); --against DATA_DIR compares with what the server kept"
        )


def _recovered(data_dir: Path) -> "Checkpoint":
    from gem_server.durability import recovery
    from gem_server.errors import StartupError

    try:
        recovered = recovery.recover(data_dir)
    except StartupError as error:
        raise CommandError(f"--against: {error}") from None
    if recovered is None:
        raise CommandError(f"--against: {data_dir} is no data directory of a server, or holds no checkpoint yet", USAGE)
    return recovered.whole


def _write_statistics(found: "Replayed", folder: Path) -> None:
    from gem_server.durability.checkpoint import Checkpoint, write_tensors

    whole = Checkpoint(found.layout, found.clock, found.parameters, found.buffers, {})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder, whole)
    except OSError as error:
        raise CommandError(f"--output {folder}: {error.strerror}; choose another folder") from None


def _compared(found: "Replayed", against: Path | None, saved: "Checkpoint | None") -> list[str]:
    with_what = [f"what the server ended with: clock {found.clock}"] if found.compared_end else []
    if saved is not None:
        with_what.append(f"what {against} has: clock {saved.clock}")
    return with_what


def _figures(found: "Replayed") -> dict[str, Any]:
    return {
        "clock": found.clock,
        "digest": found.end_digest,
        "rule": found.rule.name,
        "rule_settings": dict(found.rule.settings),
        "starts": found.starts,
        "workers": len(found.workers),
        "sessions": found.sessions,
        "resets": found.resets,
        "commits": found.commits,
        "lost": found.lost,
        "missing": found.missing,
        "compared_starts": found.compared_starts,
        "torn_at": found.torn_at,
    }


def _summary(trace: Path, found: "Replayed") -> list[str]:
    rule = ", ".join((found.rule.name, *(f"{name} {value:g}" for name, value in found.rule.settings.items())))
    lines = [
        f"{trace}: {_many(found.commits, 'commit')} of {_many(len(found.workers), 'worker')}, applied again by {rule}"
    ]
    if found.starts > 1:
        lines.append(
            f"{found.starts} starts of the server, {found.compared_starts} of them with what the trace has at that "
            f"clock, bit for bit; commits lost between them: {found.lost}; {_many(found.resets, 'reset')} of workers"
        )
    if found.missing:
        lines.append(f"commits that count but are not in it, which was not kept or not written then: {found.missing}")
    if found.torn_at is not None:
        lines.append(f"it breaks off at offset {found.torn_at}, within a record: a crash does that, or damage")
    lines.append(f"the last parameters: clock {found.clock}, SHA-256 {found.end_digest}")
    return lines


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
