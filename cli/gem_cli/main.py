"""`gemps` command: subcommands and errors."""

import os
import sys
from importlib import metadata
from typing import Annotated

import typer

from gem_cli.commands.certs import certs
from gem_cli.commands.checkpoint import checkpoint
from gem_cli.commands.conformance import conformance_app
from gem_cli.commands.doctor import doctor
from gem_cli.commands.evaluate import evaluate
from gem_cli.commands.export_task import export_task
from gem_cli.commands.finish import finish
from gem_cli.commands.launch import launch_app
from gem_cli.commands.readmit import readmit
from gem_cli.commands.replay import replay
from gem_cli.commands.reproduce import reproduce
from gem_cli.commands.serve import serve
from gem_cli.commands.shards import shards_app
from gem_cli.commands.simulate import simulate
from gem_cli.commands.status import status
from gem_cli.commands.train import train
from gem_cli.commands.work import work
from gem_cli.environment import print_misspelt
from gem_cli.errors import INTERRUPTED, CommandError
from gem_cli.gone import ExplainingGroup
from gem_cli.options import help_text
from gem_cli.short_help import CommandWithShortHelp

app = typer.Typer(
    name="gemps",
    cls=ExplainingGroup,
    help="A parameter server for asynchronous deep learning that stays stable as workers are added.\n\n"
    "[bold]gemps train[/bold] runs a server and four workers on this machine and shows how they learn. For more "
    "machines run [bold]gemps serve[/bold] on one and [bold]gemps work[/bold] on the others. gemps COMMAND --help "
    "explains the most common options of a command, and gemps COMMAND --help-all every option. Each option can also be "
    "set by its environment variable, or in a TOML file (--config).",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"gemps {metadata.version('gemps')}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    _: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version of gemps; gemps doctor prints those of Python and the packages, too.",
        ),
    ] = False,
) -> None:
    if context.invoked_subcommand not in ("serve", "work"):
        print_misspelt()


for command in (
    train, serve, work, evaluate, status, checkpoint, finish, readmit, replay, simulate,
    reproduce, export_task, certs, doctor,
):  # fmt: skip
    app.command(help=help_text(command), cls=CommandWithShortHelp)(command)
app.add_typer(launch_app)
app.add_typer(shards_app)
app.add_typer(conformance_app)


def main() -> None:
    """Run the command line."""
    # gRPC's core repeats reported errors.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        app(prog_name="gemps")
    except CommandError as error:
        print(f"gemps: {error}", file=sys.stderr)
        sys.exit(error.code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
