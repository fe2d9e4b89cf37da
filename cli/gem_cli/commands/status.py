"""`gemps status`."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from gem_cli import status_view
from gem_cli.commands.connection import CONNECTION, DEFAULT_ADDRESS, Address, connected
from gem_cli.commands.known import KNOWN
from gem_cli.options import Given, with_options
from gem_cli.status_view import Status


@with_options(CONNECTION, known=KNOWN)
def status(
    given: Given,
    address: Address = DEFAULT_ADDRESS,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Keep showing it, until the run ends or Ctrl-C.")
    ] = False,
    interval: Annotated[float, typer.Option(help="With --watch: seconds between two reports.", min=0.1)] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a line, for programs.")] = False,
) -> None:
    """Show a server's run: speed, loss, staleness, memory, and each worker.

    [bold]Examples[/bold]

      gemps status 192.168.1.5:50051 --watch

      gemps status --json | jq .workers
    """
    with connected(address, given) as observer:
        if watch:
            _watch(observer, interval, as_json=as_json)
        elif as_json:
            print(json.dumps(observer.get_status()))
        else:
            console = Console()
            found = observer.get_status()
            if console.is_terminal:
                console.print(status_view.report(found, width=console.width))
            else:
                print(status_view.plain_report(found))


def _watch(observer: Any, interval: float, *, as_json: bool) -> None:
    console = Console()
    reports = observer.watch_status(interval)
    if as_json:
        for report in reports:
            print(json.dumps(report), flush=True)
        return
    if not console.is_terminal:
        last = ""
        for report in reports:
            line = status_view.plain_line(report)
            if line != last:
                print(line, flush=True)
            last = line
        return
    with Live(console=console, screen=False, auto_refresh=False) as live:
        for report in reports:
            live.update(_fitted(report, console), refresh=True)


def _fitted(report: Status, console: Console) -> Any:
    return status_view.report(report, width=console.width, height=console.height)
