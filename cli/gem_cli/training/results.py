"""Results after training."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from gem_cli import status_view
from gem_cli.training import plot, system_info
from gem_cli.training.children import gemps
from gem_cli.training.metrics_file import commits_of, elapsed
from gem_cli.training.reporters import Reporter
from gem_cli.training.run_folder import RunFolder
from gem_cli.training.training_run import Outcome
from gem_core.extras import PACKAGES, explain_missing
from gem_core.regular_files import read_text


def evaluate(folder: RunFolder, worker_arguments: Sequence[str]) -> Mapping[str, Any] | str:
    """The evaluation or an error line.

    A subprocess loads PyTorch.
    """
    command = gemps("evaluate", str(folder.model), "--json", *worker_arguments)
    with folder.log("evaluate").open("wb") as log:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL)  # noqa: S603
    if done.returncode != 0:
        return f"evaluation failed with exit code {done.returncode}; its log is {folder.log('evaluate')}"
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def write_adapter(folder: RunFolder) -> str:
    """Write the adapter; return an error line, or ""."""
    command = gemps("evaluate", str(folder.path), "--adapter", str(folder.adapter))
    with folder.log("adapter").open("wb") as log:
        done = subprocess.run(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)  # noqa: S603
    return "" if done.returncode == 0 else f"the adapter is not written; the log is {folder.log('adapter')}"


def report_best(folder: RunFolder, target: float | None, reporter: Reporter) -> dict[str, Any]:
    """Report the best evaluation; return summary fields."""
    facts = folder.best / "best.json"
    if not facts.exists():
        return {}
    best = json.loads(read_text(facts))
    version = int(best["version"]["clock"])
    reached = target is not None and best["accuracy"] >= target
    why = f"--stop-at-accuracy {target:g} was reached, which ended the run: " if reached else ""
    reporter.event(
        "best",
        f"{why}best {status_view.describe_evaluation(best)} at version {version}, kept in {folder.best}",
        accuracy=best["accuracy"],
        loss=best["loss"],
        version=version,
        reached_target=reached,
    )
    return {"best_accuracy": best["accuracy"], "best_version": version, "reached_stop_at_accuracy": reached}


def title(folder: RunFolder, summary: Mapping[str, Any]) -> str:
    """Plot's title."""
    accuracy, bits = summary["accuracy"], summary["bits_per_character"]
    parts = [folder.path.name]
    parts += [] if accuracy is None else [f"test accuracy {accuracy:.4f}"]
    parts += [] if bits is None else [f"{bits:.4f} bits a character"]
    return " · ".join(parts)


def write_plot(folder: RunFolder, summary: Mapping[str, Any], reporter: Reporter) -> None:
    """Write plot.png, if possible."""
    metrics = [line for line in folder.read_metrics() if line.get("commits")]
    if not metrics:
        return
    try:
        plot.draw(metrics, title(folder, summary), folder.plot, test_loss=summary["test_loss"])
    except ModuleNotFoundError as error:
        if error.name not in PACKAGES["plot"]:
            raise
        reporter.event("no_plot", explain_missing(error.name, "plot", "plot.png"))


def summarize(
    outcome: Outcome, metrics: Sequence[Mapping[str, Any]], *, started: datetime, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Content of summary.json (docs/command-line.md says what each figure is of).

    Args:
        outcome: how the training ended.
        metrics: lines of metrics.jsonl. They have the seconds of training of earlier server processes, too, which the
            last status lacks; it may lack a line, in turn.
        started: when this training was started.
        settings: of the server, the workers and others, by part.
    """
    status = outcome.last_status or {}
    means = status_view.run_means(status)
    course = [*metrics, status] if status else []
    seconds = elapsed(course)[-1] if course else 0.0
    return {
        "started": started.isoformat(timespec="seconds"),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "server": outcome.address,
        "interrupted": outcome.interrupted_by is not None,
        "run_state": status_view.state(status).lower(),
        "exit_codes": outcome.exit_codes,
        "restarts": outcome.restarts,
        "accuracy": None,
        "test_loss": None,
        "test_samples": None,
        "bits_per_character": None,
        "training_loss": status_view.figures(status)["loss"],
        "version": status_view.clock(status),
        "commits": int(status.get("commits", 0)),
        "training_seconds": seconds,
        "commits_per_second": commits_of(course) / seconds if seconds else None,
        "staleness_mean": means["staleness"],
        "mean_pi": means["mean_pi"],
        "blocked_fraction": means["blocked"],
        "jain_index": status.get("jain_index"),
        **{f"payload_{name}": _total(status, name) for name in ("bytes_received", "bytes_sent")},
        "parameters": status.get("parameter_count"),
        "rule": status.get("rule"),
        "wire_types": status_view.wire_type_counts(status.get("workers", ())),
        "seed": settings["server"]["seed"],
        "settings": settings,
        "versions": system_info.versions(),
        "git_commit": system_info.git_commit(),
        "hardware": system_info.hardware(),
    }


def _total(status: Mapping[str, Any], field: str) -> int | None:
    if len(status_view.shards(status)) > 1:
        return None  # partial
    return sum(int(worker.get(field, 0)) for worker in status.get("workers", ()))
