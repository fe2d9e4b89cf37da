"""Help in two lengths: `--help` shows the options that most people need, `--help-all` shows every option."""

from collections.abc import Callable, Collection
from typing import Annotated, Any

import typer

from gem_cli.errors import USAGE, CommandError
from gem_cli.gone import ExplainingCommand

# Options of every command that has two lengths of help; their names are those of the parameters.
_ALWAYS = frozenset({"config", "help", "help_all"})
_SHOW_ALL = "gem_cli.short_help"


class CommandWithShortHelp(ExplainingCommand):
    """A command whose `--help` shows only the options that `common_options` names, if it does.

    It also says how to give a setting that is no option.

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

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Raises CommandError for a setting that this command takes, but not as an option."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # By name, as in ExplainingCommand.
            if type(error).__name__ == "NoSuchOption":
                self._explain(error.option_name)  # type: ignore[attr-defined]
            raise

    def _explain(self, option: str) -> None:
        key = option.removeprefix("--").replace("-", "_")
        settable: Collection[str] = getattr(self.callback, "settable", ())
        if key in settable:
            raise CommandError(
                f"{option} is no option of this command: write --set {key}=VALUE, or {key} = VALUE in the file of "
                "--config",
                USAGE,
            )

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
