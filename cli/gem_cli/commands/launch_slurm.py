"""`gemps launch slurm`."""

from typing import Annotated, Any

import typer
from gem_server.settings import ServerSettings

from gem_cli.commands.checks import SHARDS, check_running_server, restartable_group
from gem_cli.commands.known import KNOWN
from gem_cli.errors import USAGE, CommandError
from gem_cli.options import Given, OptionGroup, to_arguments, with_options
from gem_cli.training.shards import OF_SHARDS

_OWN: dict[str, Any] = {"exit_when_finished": True}
_SERVER = OptionGroup(
    ServerSettings, "Server", frozenset({"bind", "ready_file", *_OWN, *OF_SHARDS}), frozenset({"data_dir"})
)


@with_options(SHARDS, _SERVER, known=KNOWN)
def launch_slurm(
    given: Given,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Number of workers, each a task.")],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND ARG...]", help="Command of your own worker, instead of gemps work."),
    ] = None,
    sbatch: Annotated[
        list[str] | None,
        typer.Option("--sbatch", metavar="OPTION", help="As --sbatch=--time=04:00:00; may be repeated."),
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Add workers to this server, as a job array.")
    ] = None,
    print_only: Annotated[bool, typer.Option("--print", help="Print the script, instead of submitting it.")] = False,
) -> None:
    """Submit a server and N workers as a Slurm job, and print its id: docs/engines/slurm.md.

    [bold]Example[/bold]

      gemps launch slurm --workers 8 --config run.toml --data-dir state --set epochs=20 --sbatch=--partition=long
    """
    from gem_launch.engines import slurm

    options = sbatch or []
    if wrong := [one for one in options if not one.startswith("-") or not one.isprintable()]:
        raise CommandError(f"--sbatch {wrong[0]!r}: write one option, as --sbatch=--time=04:00:00", USAGE)
    worker = command or ["gemps", "work"]
    if server is not None:
        check_running_server(server, given)
        script = slurm.array_script(server, worker, workers, options)
    else:
        primary, of_all = restartable_group(given, {"bind": "0.0.0.0:20000", **_OWN}, {})
        del of_all[0]["bind"]  # the script adds it, and --primary
        for one in of_all[1:]:
            del one["primary"]
        servers = [["gemps", "serve", *given.arguments(ServerSettings), *to_arguments(one)] for one in of_all]
        script = slurm.job_script(servers, worker, workers, options, primary.run)
    if print_only:
        print(script, end="")
        return
    try:
        print(slurm.submit(script))
    except FileNotFoundError:
        raise CommandError("there is no sbatch here: run this where jobs are submitted, or add --print") from None
    except RuntimeError as error:
        raise CommandError(str(error)) from None
