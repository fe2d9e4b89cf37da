"""`gemps launch`."""

import typer

from gem_cli.commands.launch_ray import launch_ray
from gem_cli.options import help_text

launch_app = typer.Typer(
    name="launch", help="Run server and workers on a cluster's engine, which restarts them.", no_args_is_help=True
)
for name, function in (("ray", launch_ray),):
    launch_app.command(name=name, help=help_text(function))(function)
