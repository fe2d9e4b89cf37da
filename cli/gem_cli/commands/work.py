"""`gemps work`."""

import logging
from typing import Annotated, Any

import typer
from gem_worker.client.settings import ClientSettings
from gem_worker.settings import WorkerSettings
from gem_worker.termination import termination

from gem_cli.commands.checks import check_address, check_credentials, check_model
from gem_cli.commands.connection import CONNECTION
from gem_cli.commands.known import KNOWN
from gem_cli.environment import misspelt_logged
from gem_cli.errors import USAGE, CommandError
from gem_cli.extras import require
from gem_cli.options import Given, OptionGroup, with_options

_COMMON = (
    "server", "worker_name", "credentials",
    "task", "model", "dataset_dir", "download", "text", "batch_size", "device",
    "network",
)  # fmt: skip


@with_options(OptionGroup(WorkerSettings, "Worker"), CONNECTION, known=KNOWN, common=_COMMON)
def work(
    given: Given,
    address: Annotated[
        str | None, typer.Argument(metavar="[ADDRESS]", help="HOST:PORT of the server; the same as --server.")
    ] = None,
) -> None:
    """Run one worker: it joins a server, trains until the run is finished, and exits 0.

    Learning rate, rule, seed and budget come from the server, which may start later.

    [bold]Examples[/bold]

      gemps work 192.168.1.5:50051 --task cifar10 --model resnet18 --download

      GEMPS_SERVER=192.168.1.5:50051 gemps work --worker-name left-machine --device cuda:1
    """
    with termination.handled():
        with misspelt_logged():
            if address is not None and "server" in given.values(WorkerSettings):
                raise CommandError(
                    "the server's address stands there twice: give it as ADDRESS, or with --server", USAGE
                )
            overrides: dict[str, Any] = {} if address is None else {"server": address}
            settings, connection = given.load(WorkerSettings, **overrides), given.load(ClientSettings)
            check_address(settings.server)
            check_credentials(connection)
            check_model(settings.model, settings.task)
            require("worker", "work", "torch", "structlog")
            from gem_worker.trainer import work as run

            from gem_cli.logs import configure_logs

            configure_logs(settings.log_format, level=logging.WARNING)  # the rest goes to stdout
        code = run(settings, connection)
    if code:
        raise SystemExit(code)
