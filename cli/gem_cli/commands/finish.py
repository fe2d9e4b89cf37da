"""`gemps finish`."""

from typing import Annotated

import typer

from gem_cli.commands.connection import CONNECTION, DEFAULT_ADDRESS, Address, connected
from gem_cli.commands.known import KNOWN
from gem_cli.options import Given, with_options


@with_options(CONNECTION, known=KNOWN)
def finish(
    given: Given,
    address: Address = DEFAULT_ADDRESS,
    reason: Annotated[str, typer.Option(metavar="<text>", help="Why: for the server's log, and for its workers.")] = "",
) -> None:
    """End a run before its budget is spent: its workers leave with their next step, and exit 0.

    The server writes a checkpoint. With tokens it requires an operator's.

    [bold]Examples[/bold]

      gemps finish --reason "good enough"

      gemps finish 192.168.1.5:50051 --credentials certs/operator
    """
    with connected(address, given) as server:
        done = server.control("finish", reason)
    print(f"the run at {address} is finished, at version {done.version.clock}")
