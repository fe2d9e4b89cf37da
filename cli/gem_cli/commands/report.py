"""`gemps report`."""

from pathlib import Path
from typing import Annotated

import typer

from gem_cli.training.report import Contents, page
from gem_cli.training.run_folder import RunFolder


def report(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN_FOLDER", help="The folder that gemps train made.")],
) -> None:
    """Write report.html into a run folder again, also for a run that was killed.

    gemps train writes it when a run ends.

    [bold]Examples[/bold]

      gemps report runs/20260101-120000-digits-gem
    """
    folder = RunFolder(run_folder)
    folder.write_report(page(Contents.of(folder)))
    print(folder.report)
