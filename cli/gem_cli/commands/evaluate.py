"""`gemps evaluate`."""

import dataclasses
import json
import re
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from gem_worker.client.settings import ClientSettings
from gem_worker.evaluator_settings import EvaluatorSettings
from gem_worker.settings import WorkerSettings

from gem_cli.commands.checks import check_address, check_credentials, check_model
from gem_cli.commands.connection import CONNECTION
from gem_cli.commands.known import KNOWN
from gem_cli.errors import USAGE, CommandError, refused
from gem_cli.extras import require
from gem_cli.options import Given, OptionGroup, flag, with_options
from gem_cli.sampling import sample as write_sample
from gem_cli.status_view import describe_evaluation
from gem_cli.strict_json import to_json
from gem_core.regular_files import read_text

if TYPE_CHECKING:
    from gem_worker.evaluate import EvaluationResult

_TEXT = ("text", "context", "layers", "width", "heads")
_DATA_AND_MODEL = ("task", "model", "dataset_dir", "image_size", "generated_samples", "generated_classes", *_TEXT)
EVALUATION_FIELDS = frozenset({*_DATA_AND_MODEL, "server", "download", "batch_size", "loader_threads", "device"})
_ADDRESS = re.compile(r"[^/]+:\d+")
_OPTIONS = OptionGroup(WorkerSettings, "Data and model", frozenset(WorkerSettings.model_fields) - EVALUATION_FIELDS)
_FOLLOWING = OptionGroup(EvaluatorSettings, "With --follow")
_COMMON = (
    "server", "credentials", "task", "model", "dataset_dir", "download", "text", "device",
    "follow", "evaluation_interval", "stop_at_accuracy", "keep_best", "report", "adapter", "sample", "prompt",
    "as_json",
)  # fmt: skip


@with_options(_OPTIONS, _FOLLOWING, CONNECTION, known=KNOWN, common=_COMMON)
def evaluate(
    given: Given,
    model_file: Annotated[
        Path | None,
        typer.Argument(metavar="[MODEL_FILE]", help="A model.safetensors, of a run folder or a checkpoint."),
    ] = None,
    report: Annotated[
        bool,
        typer.Option("--report", help="With --server: report the result to the server, whose status then shows it."),
    ] = False,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", help="With --server: evaluate new versions until the run ends, and report each to the server."
        ),
    ] = False,
    adapter: Annotated[
        Path | None,
        typer.Option(
            "--adapter",
            metavar="FOLDER",
            help="Evaluate nothing; write the run's PEFT adapter there, for PeftModel.from_pretrained.",
        ),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(
            "--sample",
            metavar="BYTES",
            help="Evaluate nothing; write this much text with a transformer that was trained on the task text.",
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="With --sample: text to continue. Default: the beginning of a line."),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            metavar="<number>",
            help="With --sample: below 1 more probable text, above 1 less, at 0 the most probable. Default: 1.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="<integer>", help="With --sample: another seed gives another text. Default: 0."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object, for programs; with --follow one a line.")
    ] = False,
) -> None:
    """Measure held-out loss and accuracy of a file or a running server's parameters.

    A file in a run folder has the run's task and model, unless given here.

    With --follow it evaluates new versions until the run is finished.

    [bold]Examples[/bold]

      gemps evaluate runs/20260101-120000-digits-gem

      gemps evaluate --server 127.0.0.1:50051 --follow --keep-best best --stop-at-accuracy 0.98

      gemps evaluate state/latest --adapter adapter

      gemps evaluate runs/20260101-120000-text-gem --sample 500 --prompt "The import statement"
    """
    _check_source(given, model_file, of_server=report or follow)
    _check_purpose(given, report=report, follow=follow, adapter=adapter, sample=sample)
    if sample is not None and as_json:
        raise CommandError("--sample prints the text itself: leave out --json", USAGE)
    if sample is None and (prompt, temperature, seed) != (None, None, None):
        raise CommandError(
            "--prompt, --temperature and --seed are of the text that is written: add --sample 500", USAGE
        )
    if sample is not None:
        if model_file is None:
            raise CommandError("--sample writes with the model of a file: give a MODEL_FILE, as runs/FOLDER", USAGE)
        print(write_sample(model_file, sample, prompt=prompt, temperature=temperature, seed=seed))
        return
    of_run = {} if model_file is None or adapter is not None else _run_settings(model_file)
    settings = _settings(given, model_file, of_run)
    connection, evaluator = given.load(ClientSettings), given.load(EvaluatorSettings)
    if model_file is None:
        check_address(settings.server)
        check_credentials(connection)
    check_model(settings.model, settings.task)
    require("worker", "evaluate", "torch", "safetensors")
    if adapter is not None:
        _write_adapter(adapter, model_file, settings.server, connection)
    elif follow:
        _follow(settings, evaluator, connection, as_json=as_json)
    elif model_file is not None:
        if settings.task == "text":
            _warn_of_another_text(of_run.get("text"), settings)
        _evaluate_file(model_file, settings, as_json=as_json)
    else:
        _evaluate_server(settings, connection, report=report, as_json=as_json)


def _check_source(given: Given, model_file: Path | None, *, of_server: bool) -> None:
    """Raise CommandError unless the parameters come from one place: a file or a server."""
    if model_file is not None and (of_server or "server" in given.values(WorkerSettings)):
        raise CommandError("give either a MODEL_FILE or --server (with --report or --follow or not), not both", USAGE)
    if model_file is not None and _ADDRESS.fullmatch(str(model_file)) and not model_file.exists():
        raise CommandError(
            f"there is no file {model_file}: for what a running server holds write --server {model_file}", USAGE
        )


def _check_purpose(given: Given, *, report: bool, follow: bool, adapter: Path | None, sample: int | None) -> None:
    """Raise CommandError for options that do not go together."""
    for name in EvaluatorSettings.model_fields:
        if name in given.values(EvaluatorSettings) and not follow:
            raise CommandError(f"{flag(name)} is for an evaluator that follows a run: add --follow", USAGE)
    if adapter is not None and (report or follow):
        raise CommandError("--adapter writes an adapter and evaluates nothing: leave out --report and --follow", USAGE)
    if sample is not None and (report or follow or adapter is not None):
        raise CommandError(
            "--sample writes text and evaluates nothing: leave out --report, --follow and --adapter", USAGE
        )


def _settings(given: Given, model_file: Path | None, of_run: dict[str, Any]) -> WorkerSettings:
    """The settings of data and model: those given here, else those of the run that the file belongs to.

    Raises CommandError if they do not say what to evaluate.
    """
    worker = of_run.get("worker") or {}
    settings = given.load(WorkerSettings, fallback={name: worker[name] for name in _DATA_AND_MODEL if name in worker})
    if model_file is not None and of_run.get("command") and not settings.model_fields_set & {"task", "model"}:
        raise CommandError(
            f"{model_file} was trained by a script ({' '.join(of_run['command'])}), which alone knows model and data: "
            f"load it there with gemps.load({str(_folder(model_file))!r}).load_into(model), or name a built-in --task "
            "and --model",
            USAGE,
        )
    if model_file is None and "server" not in settings.model_fields_set:
        raise CommandError(
            "nothing to evaluate: give a MODEL_FILE, as runs/FOLDER/model.safetensors, or --server HOST:PORT", USAGE
        )
    return settings


def _evaluate_file(model_file: Path, settings: WorkerSettings, *, as_json: bool) -> None:
    from gem_worker import TaskError, evaluate_checkpoint

    try:
        result = evaluate_checkpoint(model_file, settings)
    except TaskError as error:
        raise refused(error) from None
    _print(result, as_json=as_json)


def _evaluate_server(settings: WorkerSettings, connection: ClientSettings, *, report: bool, as_json: bool) -> None:
    from gem_worker import ClientError, TaskError, evaluate_server

    reporter = socket.gethostname() if report else ""
    try:
        result = evaluate_server(settings.server, settings, report_as=reporter, client_settings=connection)
    except (ClientError, TaskError) as error:
        raise refused(error) from None
    _print(result, as_json=as_json)


def _print(result: "EvaluationResult", *, as_json: bool) -> None:
    found = dataclasses.asdict(result)
    print(to_json(found) if as_json else describe_evaluation(found))


def _write_adapter(folder: Path, model_file: Path | None, server: str, connection: ClientSettings) -> None:
    from gem_worker import ClientError, TaskError, export_adapter

    try:
        export_adapter(folder, path=model_file, address=server, client_settings=connection)
    except (ClientError, TaskError) as error:
        raise refused(error) from None
    print(f"{folder} has the adapter: PeftModel.from_pretrained(base, {str(folder)!r})")


def _follow(
    settings: WorkerSettings, evaluator: EvaluatorSettings, connection: ClientSettings, *, as_json: bool
) -> None:
    from gem_worker import ClientError, TaskError, evaluate_run

    def print_evaluation(event: str, text: str, **particulars: Any) -> None:
        print(to_json({"event": event, "message": text, **particulars}) if as_json else text, flush=True)

    best: dict[str, Any] | None = None
    try:
        for found in evaluate_run(
            settings.server,
            settings,
            evaluator,
            name=socket.gethostname(),
            client_settings=connection,
            on_event=lambda event: print_evaluation(event.kind.value, event.message),
        ):
            result = dataclasses.asdict(found.result)
            clock = result["version"]["clock"]
            text = f"{found.run_seconds:6.1f} s  version {clock}: {describe_evaluation(result)}"
            text += ", the best so far" if found.is_best else ""
            text += "" if found.is_reported else "; not reported, since its loss is not a number"
            print_evaluation("evaluated", text, **result, run_seconds=found.run_seconds, best=found.is_best)
            best = result if found.is_best else best
            if found.stops_run:
                print_evaluation(
                    "stopped", f"accuracy {result['accuracy']:.4f} is reached: the run is finished by this evaluator"
                )
    except (ClientError, TaskError) as error:
        raise refused(error) from None
    print_evaluation("ended", f"the run is finished; {_best(best, evaluator.keep_best)}", best=best)


def _best(best: dict[str, Any] | None, kept_in: Path | None) -> str:
    if best is None:
        return "there was nothing to evaluate" if kept_in is None else f"what {kept_in} had before is still the best"
    where = "" if kept_in is None else f", kept in {kept_in}"
    return f"best: version {best['version']['clock']}, {describe_evaluation(best)}{where}"


def _warn_of_another_text(of_run: dict[str, Any] | None, settings: WorkerSettings) -> None:
    from gem_worker.errors import TaskError
    from gem_worker.text_corpus import read_corpus

    try:
        found = read_corpus(settings.text, settings.context)
    except TaskError as error:
        raise CommandError(str(error)) from None
    if of_run and found.sha256 != of_run["sha256"]:
        print(
            f"gemps: the run learnt {of_run['source']} (SHA-256 {of_run['sha256'][:12]}), and this is {found.source} "
            f"({found.sha256[:12]}): what is held out here may differ",
            file=sys.stderr,
        )


def _folder(model_file: Path) -> Path:
    return model_file if model_file.is_dir() else model_file.parent


def _run_settings(model_file: Path) -> dict[str, Any]:
    summary = _folder(model_file) / "summary.json"
    if not summary.exists():
        return {}
    found: dict[str, Any] = json.loads(read_text(summary))["settings"]
    return found
