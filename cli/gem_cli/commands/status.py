"""`gemps status`."""

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from gem_worker.client.operating_system import IS_WINDOWS
from rich.console import Console

from gem_cli import status_check, status_view
from gem_cli.commands.connection import CONNECTION, DEFAULT_ADDRESS, Address, connected
from gem_cli.commands.known import KNOWN
from gem_cli.errors import USAGE, CommandError
from gem_cli.options import Given, with_options

if TYPE_CHECKING:
    from gem_worker.client import Observer

# Values of TERM whose terminals cannot move the cursor.
_DUMB = ("", "dumb", "unknown")
# Programs that monitor give a plugin up after 10 to 60 s.
CHECK_SECONDS = 10.0


@with_options(CONNECTION, known=KNOWN)
def status(
    given: Given,
    address: Address = DEFAULT_ADDRESS,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            "-w",
            help="Keep showing it: in a terminal on the whole screen, with curves, until q is pressed; otherwise (in a "
            "pipe, a file, or on Windows) as a line for each change, until the run ends.",
        ),
    ] = False,
    interval: Annotated[float, typer.Option(help="With --watch: seconds between two reports.", min=0.1)] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a line, for programs.")] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Print one line and exit as plugins of Nagios, Icinga and their like do: 0 if there is no problem, 1 "
            "for warnings, 2 if one is critical, 3 if the server does not answer within 10 s "
            "(GEMPS_CLIENT_CONNECT_TIMEOUT).",
        ),
    ] = False,
) -> None:
    """Show a server's run: speed, loss, staleness, memory, and each worker.

    Problems come first, each with what to do about it. With --watch, workers in trouble are listed first, and ?
    explains every quantity; the screen needs 80x24 characters.

    [bold]Examples[/bold]

      gemps status 192.168.1.5:50051 --watch

      ssh -t server gemps status --watch

      gemps status --json | jq .problems

      gemps status 192.168.1.5:50051 --check
    """
    if check:
        if watch or as_json:
            raise CommandError("--check prints one line: leave out --watch and --json", USAGE)
        raise typer.Exit(_check(address, given))
    on_screen = watch and not as_json and _can_draw()
    with connected(address, given, quiet=on_screen) as observer:
        if on_screen:
            _show_live(observer, interval)
        elif watch:
            _print_changes(observer, interval, as_json=as_json)
        else:
            _print_once(observer, as_json=as_json)


def _check(address: str, given: Given) -> int:
    """Print the state in one line; return the exit code."""
    try:
        with connected(address, given, quiet=True, fallback={"connect_timeout": CHECK_SECONDS}) as observer:
            found = observer.get_status()
    except CommandError as error:
        print(status_check.line("UNKNOWN", str(error)))
        return status_check.CODES["UNKNOWN"]
    state, text = status_check.check(found)
    print(text)
    return status_check.CODES[state]


def _can_draw() -> bool:
    return not IS_WINDOWS and sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "") not in _DUMB


def _show_live(observer: "Observer", interval: float) -> None:
    first = observer.get_status()
    from gem_cli.live.watch import watch

    view = watch(observer, first, interval)
    if view.is_over:
        print(status_view.plain_line(view.status))


def _print_changes(observer: "Observer", interval: float, *, as_json: bool) -> None:
    last = ""
    for report in observer.watch_status(interval):
        line = json.dumps(report) if as_json else status_view.plain_line(report)
        if as_json or line != last:
            print(line, flush=True)
        last = line


def _print_once(observer: "Observer", *, as_json: bool) -> None:
    found = observer.get_status()
    console = Console()
    if as_json:
        print(json.dumps(found))
    elif console.is_terminal:
        console.print(status_view.report(found, width=console.width))
    else:
        print(status_view.plain_report(found))
