"""Results after training."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from gem_cli import status_view
from gem_cli.training import plot, report, system_info
from gem_cli.training.children import gemps
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


def write_plot(folder: RunFolder, title: str, reporter: Reporter) -> None:
    """Write plot.png, if possible."""
    metrics = [line for line in folder.read_metrics() if line.get("commits")]
    if not metrics:
        return
    try:
        plot.draw(metrics, title, folder.plot)
    except ModuleNotFoundError as error:
        if error.name not in PACKAGES["plot"]:
            raise
        reporter.event("no_plot", explain_missing(error.name, "plot", "plot.png"))


def write_report(folder: RunFolder) -> bool:
    """Write report.html; False without reports."""
    if folder.last_status() is None:
        return False
    folder.write_report(report.page(report.Contents.of(folder)))
    return True


def summarize(outcome: Outcome, *, started: datetime, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Content of summary.json."""
    status, first = outcome.last_status or {}, outcome.first_status or {}
    figures = status_view.figures(status)
    # Resumed: commits count from the start, seconds do not.
    seconds = float(status.get("run_seconds", 0))
    commits_here = int(status.get("commits", 0)) - int(first.get("commits", 0))
    return {
        "started": started.isoformat(timespec="seconds"),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "server": outcome.address,
        "interrupted": outcome.interrupted_by is not None,
        "exit_codes": outcome.exit_codes,
        "accuracy": None,
        "test_loss": None,
        "test_samples": None,
        "bits_per_character": None,
        "training_loss": figures["loss"],
        "version": status_view.clock(status),
        "commits": int(status.get("commits", 0)),
        "training_seconds": seconds,
        "commits_per_second": commits_here / seconds if seconds else None,
        "staleness_mean": figures["staleness"],
        "mean_pi": figures["mean_pi"],
        "blocked_fraction": figures["blocked"],
        "jain_index": status.get("jain_index"),
        **{f"payload_{name}": _total(status, name) for name in ("bytes_received", "bytes_sent")},
        "parameters": status.get("parameter_count"),
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
