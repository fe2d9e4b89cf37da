"""`gemps launch ray`."""

import os
import socket
from typing import Annotated, Any

import typer
from gem_server.settings import ServerSettings

from gem_cli.commands.checks import SHARDS, check_running_server, restartable_group
from gem_cli.commands.known import KNOWN
from gem_cli.errors import USAGE, CommandError
from gem_cli.extras import require
from gem_cli.options import Given, OptionGroup, with_options
from gem_cli.setting_keys import explicit
from gem_cli.training.shards import OF_SHARDS

_SERVER = OptionGroup(
    ServerSettings, "Server", frozenset({"exit_when_finished", "ready_file", *OF_SHARDS}), frozenset({"data_dir"})
)


@with_options(SHARDS, _SERVER, known=KNOWN)
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

      gemps launch ray --workers 3 --config run.toml --data-dir /shared/run --set insecure=true -- python train.py
    """
    if server is not None:
        check_running_server(server, given)
    own = _settings(given, workers) if server is None else server
    require("ray", "launch ray")
    from gem_launch.engines.ray import RayLaunch

    code = RayLaunch(own, workers, command or ["gemps", "work"], gpus_per_worker, max_restarts).run()
    if code:
        raise SystemExit(code)


def _settings(given: Given, workers: int) -> list[dict[str, Any]]:
    name = f"{socket.gethostname()}-{os.getpid()}"
    fallback = {"bind": "0.0.0.0:0", "log_format": "human", "min_workers": workers, "run": name}
    first, of_all = restartable_group(given, {"exit_when_finished": True}, fallback)
    if first.data_dir is None or not first.data_dir.is_absolute():
        raise CommandError("--data-dir needs an absolute path, best on storage that all nodes share", USAGE)
    return [explicit(first) | one for one in of_all]
