"""Help in two lengths: `--help` shows the options that most people need, `--help-all` shows every option."""

from collections.abc import Callable, Collection
from typing import Annotated, Any

import typer

from gem_cli.gone import ExplainingCommand

# Options of every command that has two lengths of help; their names are those of the parameters.
_ALWAYS = frozenset({"config", "help", "help_all"})
_SHOW_ALL = "gem_cli.short_help"


class CommandWithShortHelp(ExplainingCommand):
    """A command whose `--help` shows only the options that `common_options` names, if it does.

    All options are parsed and completed in any case.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        """Parameters to parse and, while help is formatted, those to show."""
        common = getattr(self.callback, "common_options", None)
        parameters = super().get_params(ctx)
        if common is None or ctx.meta.get(_SHOW_ALL, True):
            return parameters
        shown = _ALWAYS | frozenset(common)
        return [one for one in parameters if one.param_type_name == "argument" or one.name in shown]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, without the less common options unless `--help-all` asks for them."""
        ctx.meta.setdefault(_SHOW_ALL, False)
        super().format_help(ctx, formatter)


def name_common_options(command: Callable[..., None], names: Collection[str]) -> None:
    """Let `command --help` show only these parameters, besides arguments, `--config` and the help options."""
    command.__dict__["common_options"] = frozenset(names)


def _print_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.meta[_SHOW_ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


HELP_ALL = Annotated[
    bool,
    typer.Option(
        "--help-all",
        callback=_print_all,
        is_eager=True,
        help="Show every option of this command; --help shows the most common ones.",
    ),
]
