"""`gemps top`."""

import os
import sys
from typing import Annotated

import typer
from gem_worker.client.operating_system import IS_WINDOWS

from gem_cli.commands.connection import CONNECTION, DEFAULT_ADDRESS, Address, Server, connected, one_address
from gem_cli.commands.known import KNOWN
from gem_cli.errors import USAGE, CommandError
from gem_cli.options import Given, with_options
from gem_cli.status_view import plain_line

# TERM without cursor movement.
_DUMB = ("", "dumb", "unknown")


@with_options(CONNECTION, known=KNOWN)
def top(
    given: Given,
    address: Address = DEFAULT_ADDRESS,
    server: Server = None,
    interval: Annotated[float, typer.Option(help="Seconds between two reports.", min=0.1)] = 1.0,
) -> None:
    """Watch a run in this terminal: curves, and every worker.

    Workers in trouble are listed first; ? explains every quantity. It needs 80x24 characters.

    [bold]Examples[/bold]

      gemps top 192.168.1.5:50051

      ssh -t server gemps top
    """
    if IS_WINDOWS:
        raise CommandError("gemps top needs a terminal of Unix; use gemps status --watch", USAGE)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandError("gemps top needs a terminal; elsewhere use gemps status --watch", USAGE)
    if os.environ.get("TERM", "") in _DUMB:
        raise CommandError(
            f"gemps top cannot draw on this terminal (TERM={os.environ.get('TERM', '')}); use gemps status --watch",
            USAGE,
        )
    with connected(one_address(address, server), given, quiet=True) as observer:
        first = observer.get_status()
        from gem_cli.top.watch import watch

        view = watch(observer, first, interval)
    if view.is_over:
        print(plain_line(view.status))
