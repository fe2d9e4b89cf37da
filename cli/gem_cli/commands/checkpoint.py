"""`gemps checkpoint`."""

from gem_cli.commands.connection import CONNECTION, DEFAULT_ADDRESS, Address, connected
from gem_cli.commands.known import KNOWN
from gem_cli.options import Given, with_options


@with_options(CONNECTION, known=KNOWN)
def checkpoint(given: Given, address: Address = DEFAULT_ADDRESS) -> None:
    """Write a checkpoint now; print its folder on the server.

    The server needs --data-dir. With tokens it requires an operator's.

    [bold]Examples[/bold]

      gemps checkpoint

      gemps checkpoint 192.168.1.5:50051 --credentials certs/operator
    """
    with connected(address, given) as server:
        print(server.control("checkpoint", "gemps checkpoint").checkpoint_path)
