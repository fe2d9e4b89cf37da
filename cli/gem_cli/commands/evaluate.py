"""`gemps evaluate`."""

from pathlib import Path
from typing import Annotated

import typer
from gem_worker.settings import WorkerSettings

from gem_cli.commands.known import KNOWN
from gem_cli.options import Given, OptionGroup, with_options

# What decides about data and model; the rest of a worker's settings is about training.
_EVALUATION_FIELDS = {
    "server", "task", "model", "dataset_dir", "download", "image_size", "generated_samples", "generated_classes",
    "batch_size", "loader_threads", "device", "cpu_threads",
}  # fmt: skip
_GROUP = OptionGroup(WorkerSettings, "Evaluation", frozenset(WorkerSettings.model_fields) - _EVALUATION_FIELDS)


@with_options(_GROUP, known=KNOWN)
def evaluate(
    given: Given,
    model_file: Annotated[
        Path | None,
        typer.Argument(metavar="[MODEL_FILE]", help="A model.safetensors, of a run folder or a checkpoint."),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="With --server: tell the server the result, so that its status shows it.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object, for programs.")] = False,
) -> None:
    """Measure loss and accuracy on held-out data: of a file, or of what a running server holds now.

    For a file in a run folder, task and model are those of the run (its summary.json), unless given here.

    [bold]Examples[/bold]

      gemps evaluate runs/20260101-120000-digits-gem/model.safetensors

      gemps evaluate --server 127.0.0.1:50051 --task digits
    """
