"""`gemps evaluate`."""

import dataclasses
import json
import socket
from pathlib import Path
from typing import Annotated, Any

import typer
from gem_worker.client.settings import ClientSettings
from gem_worker.settings import WorkerSettings

from gem_cli.commands.checks import check_address, check_credentials, check_model
from gem_cli.commands.connection import CONNECTION
from gem_cli.commands.known import KNOWN
from gem_cli.errors import USAGE, CommandError, missing_worker_extra, refused
from gem_cli.options import Given, OptionGroup, with_options
from gem_cli.status_view import describe_evaluation

# What decides about data and model, and is therefore taken from the run where its folder tells.
_DATA_AND_MODEL = ("task", "model", "dataset_dir", "image_size", "generated_samples", "generated_classes")
# What of a worker's settings an evaluation heeds; the rest is about training.
EVALUATION_FIELDS = frozenset({*_DATA_AND_MODEL, "server", "download", "batch_size", "loader_threads", "device"})
_OPTIONS = OptionGroup(WorkerSettings, "Data and model", frozenset(WorkerSettings.model_fields) - EVALUATION_FIELDS)


@with_options(_OPTIONS, CONNECTION, known=KNOWN)
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
    if model_file is not None and (report or given.has_flag(WorkerSettings, "server")):
        raise CommandError("give either a MODEL_FILE or --server (with or without --report), not both", USAGE)
    settings = given.load(WorkerSettings, fallback={} if model_file is None else _of_the_run(model_file))
    if model_file is None and "server" not in settings.model_fields_set:
        raise CommandError(
            "nothing to evaluate: give a MODEL_FILE, as runs/FOLDER/model.safetensors, or --server HOST:PORT", USAGE
        )
    connection = given.load(ClientSettings)
    if model_file is None:
        check_address(settings.server)
        check_credentials(connection)
    check_model(settings.model)
    try:
        from gem_worker import ClientError, TaskError, evaluate_checkpoint, evaluate_server
    except ModuleNotFoundError as error:
        raise missing_worker_extra(error) from None
    try:
        if model_file is not None:
            result = evaluate_checkpoint(model_file, settings)
        else:
            reporter = socket.gethostname() if report else ""
            result = evaluate_server(settings.server, settings, report_as=reporter, client_settings=connection)
    except (ClientError, TaskError) as error:
        raise refused(error) from None
    found = dataclasses.asdict(result)
    print(json.dumps(found) if as_json else describe_evaluation(found))


def _of_the_run(model_file: Path) -> dict[str, Any]:
    """Return task and model of the run whose folder the file is in; {} when it is in none."""
    folder = model_file if model_file.is_dir() else model_file.parent
    summary = folder / "summary.json"
    if not summary.exists():
        return {}
    worker = json.loads(summary.read_text(encoding="utf-8"))["settings"]["worker"] or {}
    return {name: worker[name] for name in _DATA_AND_MODEL if name in worker}
