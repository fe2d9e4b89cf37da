"""The command `gemps readmit`, which ends a worker's quarantine."""

from typing import Annotated

import typer

from gem_cli.commands.connection import CONNECTION, DEFAULT_ADDRESS, Address, connected
from gem_cli.commands.known import KNOWN
from gem_cli.errors import CommandError
from gem_cli.options import Given, with_options
from gem_cli.status_view import printable


@with_options(CONNECTION, known=KNOWN)
def readmit(
    given: Given,
    worker: Annotated[str, typer.Argument(metavar="WORKER", help="Name of the worker, as gemps status shows it.")],
    address: Address = DEFAULT_ADDRESS,
    reason: Annotated[str, typer.Option(metavar="<text>", help="Why: for the server's log.")] = "",
) -> None:
    """Let a quarantined worker's deltas count again, after it was repaired.

    A worker is quarantined if half of its last 40 deltas were much larger than those of the others (limits.delta_norm).
    With tokens it requires an operator's.

    [bold]Examples[/bold]

      gemps readmit worker-3

      gemps readmit worker-3 192.168.1.5:50051 --credentials certs/operator
    """
    with connected(address, given) as server:
        was_quarantined = server.end_quarantine(worker, reason)
    if not was_quarantined:
        raise CommandError(f"worker {printable(worker, 80)} is not quarantined at {address}: see gemps status")
    print(f"the deltas of worker {printable(worker, 80)} count again")
