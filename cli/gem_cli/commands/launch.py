"""`gemps launch`."""

import typer

from gem_cli.commands.launch_ray import launch_ray
from gem_cli.commands.launch_slurm import launch_slurm
from gem_cli.commands.launch_spark import launch_spark
from gem_cli.options import help_text
from gem_cli.short_help import CommandWithShortHelp

launch_app = typer.Typer(
    name="launch", no_args_is_help=True, help="Run server and workers on the engine of a cluster: docs/engines."
)

for name, function in (("ray", launch_ray), ("slurm", launch_slurm), ("spark", launch_spark)):
    launch_app.command(name=name, help=help_text(function), cls=CommandWithShortHelp)(function)
