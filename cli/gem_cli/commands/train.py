"""The command `gemps train`."""

import os
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from gem_server.settings import MAX_SOCKET_PATH_BYTES, ServerSettings
from gem_worker.client.operating_system import HAS_SHARED_MEMORY
from gem_worker.client.settings import EXCHANGE_VARIABLES, ClientSettings
from gem_worker.evaluator_settings import EvaluatorSettings
from gem_worker.settings import WorkerSettings

from gem_cli.commands.checks import check_credentials, check_has_credentials, check_model
from gem_cli.commands.evaluate import EVALUATION_FIELDS
from gem_cli.commands.known import KNOWN
from gem_cli.errors import FAILED, USAGE, CommandError
from gem_cli.extras import require, require_server_system
from gem_cli.options import Given, OptionGroup, to_arguments, with_options
from gem_cli.programs import resolved
from gem_cli.sinks.interface import RunInfo
from gem_cli.sinks.sinks import Sinks, chosen_sinks
from gem_cli.status_view import describe_evaluation
from gem_cli.training import shards
from gem_cli.training.children import ONE_THREAD, gemps
from gem_cli.training.reporters import Reporter, choose_reporter
from gem_cli.training.run_folder import RunFolder
from gem_cli.training.settings import TrainSettings
from gem_cli.training.training_run import Outcome, Plan, TrainingRun
from gem_core.visible_text import escape_invisible

DEFAULT_EPOCHS, TEXT_EPOCHS = 30.0, 4.0
MAX_RUN_NAME = 64  # characters, at most 256 bytes

# Its log is read by people, and quoted when it fails.
_IN_THE_FOLDER = {"log_format": "human"}
_OWN = frozenset({"data_dir", "ready_file", "exit_when_finished", "log_format"})
# The options of a training on one machine. --set and --config accept all other settings.
_TRAIN = OptionGroup(TrainSettings, "Training", flags=frozenset({"workers", "shards", "runs_dir", "run_dir", "sinks"}))
_SERVER = OptionGroup(
    ServerSettings,
    "Server",
    _OWN | shards.OF_SHARDS,
    frozenset(
        {
            *("rule", "rule_settings", "direction", "clip_norm", "weight_decay", "local_steps"),
            *("eta", "eta_schedule", "steps", "epochs", "commits"),
            *("seed", "order", "min_workers", "resume", "durability", "record", "dashboard"),
        }
    ),
)
_EVALUATOR = OptionGroup(EvaluatorSettings, "Training", frozenset({"keep_best"}))
# Settings that also apply to commands of the user's. `device` determines the number of threads.
_FOR_COMMANDS = (*EXCHANGE_VARIABLES, "device")
_WORKER = OptionGroup(
    WorkerSettings,
    "Worker",
    frozenset({"server", "worker_name", "run", "log_format"}),
    frozenset(
        {
            *("task", "model", "dataset_dir", "download", "text", "context", "layers", "width", "heads"),
            *("batch_size", "device", "cpu_threads", "network", "delta_wire", "parameter_wire"),
        }
    ),
)
_COMMON = (
    "workers", "run_dir", "resume", "steps", "epochs", "commits",
    "task", "model", "batch_size", "device",
    "rule", "eta", "rule_settings", "direction", "dashboard",
)  # fmt: skip


@with_options(_TRAIN, _EVALUATOR, _WORKER, _SERVER, known=KNOWN, common=_COMMON)
def train(
    given: Given,
    script: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND ARG...]", help="Command of your own worker, instead of gemps work."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Report events as JSON lines, for programs.")] = False,
) -> None:
    """Train on this machine: start a server and several workers as processes, and write the results to a run folder.

    Without a budget (--steps, --epochs, --commits), the built-in tasks train for 30 epochs, and the task text for 4.
    Ctrl-C ends the run cleanly; a second Ctrl-C kills its processes.

    To train with a script of your own, give its command after -- (docs/command-line.md).

    [bold]Examples[/bold]

      gemps train --workers 8 --task cifar10 --download --epochs 5

      gemps train --workers 2 --steps 500 -- python my_script.py --hidden 128
    """
    require_server_system("train")
    settings = given.load(TrainSettings)
    names = chosen_sinks(settings.sinks)
    worker = given.load(WorkerSettings, fallback=_IN_THE_FOLDER)
    client = given.load(ClientSettings)
    check_credentials(client)
    check_has_credentials(given.load(ServerSettings, data_dir=Path(), fallback=_IN_THE_FOLDER), client)
    command = resolved(script, "a task is chosen by --task") if script else None
    if command is not None:
        _refuse_flags_without_effect(given)
    evaluator = _evaluator(given, worker, command)
    if command is None:
        check_model(worker.model, worker.task)
    text = _text_facts(worker) if command is None and worker.task == "text" else None
    require("train", "train", "numba", *(["torch"] if command is None else []))
    # Run folder paths may be too long for sockets.
    with TemporaryDirectory(prefix="gemps-") as sockets:
        folder, server, server_commands = _prepare(
            given,
            settings,
            worker,
            command,
            client,
            Path(sockets) / "memory",
            has_evaluator=evaluator is not None,
        )
        plan = Plan(
            server=server_commands[0],
            worker=command
            or gemps("work", *to_arguments({"log_format": worker.log_format}), *given.arguments(WorkerSettings)),
            workers=settings.workers,
            min_workers=server.min_workers,
            worker_environment=_worker_environment(worker, command) | {"GEMPS_RUN": server.run},
            is_script=command is not None,
            report_interval=settings.report_interval,
            worker_exit_timeout=settings.worker_exit_timeout,
            evaluator=None if evaluator is None else [*evaluator, f"--keep-best={folder.best}"],
            shards=server_commands[1:],
        )
        started = datetime.now(UTC)
        used: dict[str, Any] = {
            "train": settings.model_dump(mode="json"),
            "server": server.model_dump(mode="json") | {"durability": server.durability_level},
            "worker": _used_by_workers(worker, is_script=command is not None),
            "evaluator": None if evaluator is None else _used_by_evaluator(given),
            "command": command,
            "text": text,
        }
        with choose_reporter(as_json=as_json) as reporter:
            sinks = Sinks(names, RunInfo(folder.path.name, folder.path, used), reporter.event)
            outcome = TrainingRun(plan, folder, reporter, sinks).run()
    evaluation = None if command else _evaluation_arguments(worker)
    sinks.close(_finish(folder, outcome, started, used, evaluation, reporter))
    if (outcome.server_failed or outcome.interrupted_by is not None) and folder.has_checkpoint():
        again = _resume_command(given, folder, script, as_json=as_json)
        why = "the run was interrupted" if outcome.interrupted_by is not None else "the server failed"
        message = f"{why}; this continues it from its newest checkpoint: {again}"
        reporter.event("resume", message, command=again)
    _exit(outcome, folder)


def _used_by_workers(worker: WorkerSettings, *, is_script: bool) -> dict[str, Any]:
    """Return the workers' settings for summary.json. Of a script gemps knows only those that it passes to it."""
    return worker.model_dump(mode="json", include=set(EXCHANGE_VARIABLES) if is_script else None, exclude={"server"})


def _used_by_evaluator(given: Given) -> dict[str, Any]:
    return given.load(EvaluatorSettings).model_dump(mode="json", exclude={"keep_best"})


def _exit(outcome: Outcome, folder: RunFolder) -> None:
    """Raise SystemExit if the run was interrupted or has failed."""
    if outcome.interrupted_by is not None:
        raise SystemExit(128 + outcome.interrupted_by)
    if outcome.server_failed or outcome.failed_workers or outcome.merge_error or not folder.model.exists():
        raise SystemExit(FAILED)


def _prepare(
    given: Given,
    settings: TrainSettings,
    worker: WorkerSettings,
    command: Sequence[str] | None,
    client: ClientSettings,
    socket: Path,
    *,
    has_evaluator: bool,
) -> tuple[RunFolder, ServerSettings, list[list[str]]]:
    asked = given.load(ServerSettings, data_dir=Path(), fallback=_IN_THE_FOLDER)
    own = _own_settings(asked, settings, has_evaluator=has_evaluator)
    if command is None and not (asked.steps or asked.epochs or asked.commits):
        own["epochs"] = TEXT_EPOCHS if worker.task == "text" else DEFAULT_EPOCHS
    shares = "shared_memory_socket" not in asked.model_fields_set
    if settings.shards > 1:
        own |= shards.primary_settings(asked, client, settings.shards)
        own["bind"] = shards.with_port(own.get("bind", asked.bind))
    if shares and _may_be_a_socket(shards.shard_socket(socket, settings.shards)):
        own["shared_memory_socket"] = socket
    given.load(ServerSettings, data_dir=Path(), **own)  # validates before creating folders
    folder = _run_folder(settings, asked, _program(command) if command else worker.task)
    data_dirs = folder.data_dirs(settings.shards)
    own |= {"data_dir": data_dirs[0], "ready_file": folder.ready_file, "run": asked.run or _run_name(folder)}
    server = given.load(ServerSettings, **own)
    of_all = shards.group_settings(server, own, client, data_dirs)
    return folder, server, [gemps("serve", *given.arguments(ServerSettings), *to_arguments(one)) for one in of_all]


def _own_settings(asked: ServerSettings, settings: TrainSettings, *, has_evaluator: bool) -> dict[str, Any]:
    """Return settings of the server that a training on this machine needs, and that the user has not set."""
    own: dict[str, Any] = {"exit_when_finished": True, "log_format": asked.log_format}
    if "bind" not in asked.model_fields_set:
        own["bind"] = "127.0.0.1:0"
    if "min_workers" not in asked.model_fields_set:
        own["min_workers"] = settings.workers
    if has_evaluator and "exit_grace" not in asked.limits.model_fields_set:
        # The evaluator pulls the last version after the end of the run, and then reports to the server.
        own["limits.exit_grace"] = max(asked.limits.exit_grace, settings.worker_exit_timeout)
    return own


def _run_folder(settings: TrainSettings, asked: ServerSettings, name: str) -> RunFolder:
    """The folder of --run-dir, or a new one that is named after `name` and the rule."""
    if settings.run_dir is not None:
        return RunFolder.given(settings.run_dir, resume=asked.resume, shards=settings.shards)
    if asked.resume:
        raise CommandError("--resume needs --run-dir DIRECTORY, the folder of the run to continue", USAGE)
    return RunFolder.fresh(settings.runs_dir, f"{Path(name).stem}-{asked.rule}")


def _run_name(folder: RunFolder) -> str:
    """The name of the folder, by which workers that come late know that the finished run is theirs."""
    return escape_invisible(folder.path.resolve().name)[:MAX_RUN_NAME]


def _program(command: Sequence[str]) -> str:
    """The script in a command, or its program."""
    return next((part for part in command if part.endswith(".py")), command[0])


def _resume_command(given: Given, folder: RunFolder, script: Sequence[str] | None, *, as_json: bool) -> str:
    """Return this command line for a shell, changed so that it continues the run in `folder`."""
    kept = [
        one for one in given.command_line() if one != "--resume" and not one.startswith(("--run-dir=", "--runs-dir="))
    ]
    kept += [f"--run-dir={folder.path}", "--resume", *(["--json"] if as_json else [])]
    return shlex.join(["gemps", "train", *kept, *(["--", *script] if script else [])])


def _text_facts(worker: WorkerSettings) -> dict[str, Any]:
    from gem_worker.errors import TaskError
    from gem_worker.text_corpus import read_corpus

    try:
        return read_corpus(worker.text, worker.context).facts()
    except TaskError as error:
        raise CommandError(str(error), USAGE) from None


def _evaluation_arguments(worker: WorkerSettings) -> list[str]:
    return to_arguments(worker.model_dump(include=set(EVALUATION_FIELDS - {"server"})))


def _evaluator(given: Given, worker: WorkerSettings, script: Sequence[str] | None) -> list[str] | None:
    wanted = given.load(EvaluatorSettings).model_dump(exclude={"keep_best"}, exclude_none=True)
    if not wanted:
        return None
    if script is not None:
        raise CommandError(
            "--evaluation-interval and --stop-at-accuracy are for the built-in tasks, since only your own script knows "
            "how to evaluate: leave them out; the script can call Observer.report_evaluation, and gemps finish ends "
            "the run",
            USAGE,
        )
    return gemps("evaluate", "--follow", *_evaluation_arguments(worker), *to_arguments(wanted))


def _refuse_flags_without_effect(given: Given) -> None:
    if flags := [text for name, text in given.spelt(WorkerSettings).items() if name not in _FOR_COMMANDS]:
        raise CommandError(
            f"{', '.join(flags)}: only for the built-in tasks, without effect on your own command: leave it out; the "
            "command's options come after --",
            USAGE,
        )


def _worker_environment(worker: WorkerSettings, command: Sequence[str] | None) -> dict[str, str]:
    threads = {} if worker.device.startswith("cuda") else ONE_THREAD
    if command is None:
        return threads
    values = {variable: getattr(worker, name) for name, variable in EXCHANGE_VARIABLES.items()}
    return threads | {variable: value for variable, value in values.items() if value is not None}


def _may_be_a_socket(path: Path) -> bool:
    return HAS_SHARED_MEMORY and len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES


def _finish(
    folder: RunFolder,
    outcome: Outcome,
    started: datetime,
    used: dict[str, Any],
    evaluation_arguments: list[str] | None,
    reporter: Reporter,
) -> dict[str, Any]:
    from gem_cli.training import results

    folder.ready_file.unlink(missing_ok=True)
    count = used["train"]["shards"]
    outcome.merge_error = shards.merge(folder.data_dirs(count), folder.path) if count > 1 else ""
    has_model = folder.keep_final_model()
    if outcome.merge_error:
        reporter.event("training_failed", outcome.merge_error)
    elif not has_model:
        text = f"no model was trained; the logs are in {folder.logs}"
        if outcome.address is not None and not outcome.failed_workers:
            text = (
                f"no model was trained: no worker brought parameters to this run's server, {outcome.address}; a script "
                f"needs a ParameterServer without an address, so that it trains here; the logs are in {folder.logs}"
            )
        reporter.event("training_failed", text)
    elif folder.has_adapter() and (trouble := results.write_adapter(folder)):
        reporter.event("no_adapter", trouble)
    summary = results.summarize(outcome, folder.read_metrics(), started=started, settings=used)
    folder.write_summary(summary)
    if has_model and evaluation_arguments is not None and outcome.interrupted_by is None:
        found = results.evaluate(folder, evaluation_arguments)
        if isinstance(found, str):
            reporter.event("evaluation_failed", found)
        else:
            reporter.event("evaluated", "test " + describe_evaluation(found), **found)
            summary |= {"accuracy": found["accuracy"], "test_loss": found["loss"], "test_samples": found["samples"]}
            summary["bits_per_character"] = found["bits_per_character"]
            folder.write_summary(summary)
    evaluator = used["evaluator"] or {}
    if told := results.report_best(folder, evaluator.get("stop_at_accuracy"), reporter):
        summary |= told
        folder.write_summary(summary)
    results.write_plot(folder, summary, reporter)
    reporter.event("finished", f"run folder {folder.path}", run_dir=str(folder.path), summary=summary)
    return summary
