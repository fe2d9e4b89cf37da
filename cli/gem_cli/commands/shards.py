"""The commands below `gemps shards`, which merge and split the model files of several servers."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from gem_cli.errors import CommandError
from gem_cli.extras import require
from gem_cli.options import help_text

Result = TypeVar("Result")

shards_app = typer.Typer(
    name="shards",
    no_args_is_help=True,
    help="Change the number of servers that hold a model: merge their data directories, or split that of one server.",
)


def merge(
    data_dirs: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="The --data-dir of each shard, shard 0 first.")
    ],
    output: Annotated[Path, typer.Option(metavar="DIR", help="Data directory to make.")],
    model_folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write the model there, too: files of at most 5 GB and an index, as Hugging Face's from_pretrained "
            "reads large ones.",
        ),
    ] = None,
) -> None:
    """Make one data directory of the whole model from those of its shards, whose servers have ended.

    Prints the checkpoint's folder, with model.safetensors. One server can resume from the directory.

    [bold]Examples[/bold]

      gemps shards merge state-0 state-1 --output state
    """
    require("server", "shards merge", "safetensors")
    from gem_server.durability import checkpoint, model_files, shard_files

    place = _done(lambda: shard_files.merge(data_dirs, output))
    print(place)
    if model_folder is not None:
        folder = model_folder
        print(_done(lambda: model_files.split_model(place / checkpoint.MODEL_FILE, folder)))


def split(
    data_dir: Annotated[Path, typer.Argument(metavar="DIR", help="Data directory of the whole model.")],
    shards: Annotated[int, typer.Option(metavar="N", min=2, help="Number of shards.")],
    output: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the shards' data directories, 0, 1, ...")],
) -> None:
    """Make data directories of N shards from that of one server, which has ended. Prints them, shard 0 first.

    [bold]Examples[/bold]

      gemps shards split state --shards 2 --output shards
    """
    require("server", "shards split", "safetensors")
    from gem_server.durability import shard_files

    for place in _done(lambda: shard_files.split(data_dir, shards, output)):
        print(place)


def _done(work: Callable[[], Result]) -> Result:
    from gem_server.errors import StartupError

    from gem_core import LayoutError

    try:
        return work()
    except (LayoutError, StartupError) as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise CommandError(f"{error}: check the disk and its permissions") from None


for _command in (merge, split):
    shards_app.command(help=help_text(_command))(_command)
