"""`gemps launch spark`."""

import logging
from typing import Annotated

import typer
from gem_server.settings import ServerSettings

from gem_cli.commands.checks import SHARDS, check_running_server
from gem_cli.commands.known import KNOWN
from gem_cli.errors import FAILED, USAGE, CommandError
from gem_cli.extras import require, require_server_system
from gem_cli.options import Given, OptionGroup, with_options
from gem_cli.training.settings import TrainSettings
from gem_cli.training.shards import OF_SHARDS


@with_options(SHARDS, OptionGroup(ServerSettings, "Server", OF_SHARDS, frozenset({"data_dir"})), known=KNOWN)
def launch_spark(
    given: Given,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Number of workers, each in a free task slot.")],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND ARG...]", help="Command of your own worker, instead of gemps work."),
    ] = None,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="As of spark-submit: spark://HOST:7077, yarn, local[4].")
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="As of spark-submit; may be repeated.")
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Add workers to this server, instead of starting one.")
    ] = None,
) -> None:
    """Run a server here, and N workers on Spark.

    [bold]Example[/bold]

      gemps launch spark --master spark://10.0.0.1:7077 --workers 8 --set steps=5000 --set insecure=true
    """
    require_server_system("launch spark")
    pairs = [one.partition("=") for one in conf or ()]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        raise CommandError(f"--conf {wrong[0]}: write NAME=VALUE", USAGE)
    if server is not None:
        check_running_server(server, given)
    settings = given.load(ServerSettings)
    require("spark", "launch spark")
    from gem_launch.engines import spark

    from gem_cli.logs import configure_logs

    configure_logs(settings.log_format, level=logging.WARNING)
    logging.getLogger("gem_launch").setLevel(logging.INFO)
    options = {name: value for name, _, value in pairs} | ({} if master is None else {"spark.master": master})
    own = {name: getattr(settings, name) for name in settings.model_fields_set}
    try:
        spark.launch_workers(command or (), workers, options, server, given.load(TrainSettings).shards, own)
    except (RuntimeError, ValueError) as error:
        raise CommandError(str(error), USAGE if isinstance(error, ValueError) else FAILED) from None
