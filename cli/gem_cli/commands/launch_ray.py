"""`gemps launch ray`."""

from typing import Annotated, Any

import typer
from gem_server.settings import ServerSettings

from gem_cli.commands.checks import check_running_server, require_data_dir
from gem_cli.commands.known import KNOWN
from gem_cli.errors import USAGE, CommandError
from gem_cli.extras import require
from gem_cli.options import Given, OptionGroup, with_options

_SERVER = OptionGroup(ServerSettings, "Server", frozenset({"exit_when_finished", "ready_file"}))


@with_options(_SERVER, known=KNOWN)
def launch_ray(
    given: Given,
    workers: Annotated[int, typer.Option("--workers", min=1, max=1024, help="Number of workers.")],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND ARG...]", help="What each worker runs; default: gemps work."),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option("--server", metavar="<address>", help="Add workers to this server instead of starting one."),
    ] = None,
    gpus_per_worker: Annotated[
        float, typer.Option("--gpus-per-worker", min=0.0, help="GPUs that Ray reserves for each worker.")
    ] = 0.0,
    max_restarts: Annotated[
        int, typer.Option("--max-restarts", min=-1, help="Restarts of each actor, by Ray; -1: no limit.")
    ] = 20,
) -> None:
    """Run server and workers as Ray actors. Exit code 0: finished.

    [bold]Example[/bold]

      gemps launch ray --workers 3 --insecure --commits 5000 --data-dir /shared/run -- python train.py
    """
    if server is not None:
        check_running_server(server, given)
    own = _settings(given, workers) if server is None else server
    require("ray", "launch ray")
    from gem_launch.engines.ray import RayLaunch

    code = RayLaunch(own, workers, command or ["gemps", "work"], gpus_per_worker, max_restarts).run()
    if code:
        raise SystemExit(code)


def _settings(given: Given, workers: int) -> dict[str, Any]:
    own = {"bind": "0.0.0.0:0", "log_format": "human", "min_workers": workers}
    settings = given.load(ServerSettings, fallback=own, exit_when_finished=True)
    if not require_data_dir(settings).is_absolute():
        raise CommandError("--data-dir needs an absolute path, best on storage that all nodes share", USAGE)
    return {name: value for name in settings.model_fields_set if (value := getattr(settings, name)) is not None}
