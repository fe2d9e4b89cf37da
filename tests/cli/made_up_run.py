"""A run folder that a training could have left, with something in every file; and names that nobody should give."""

from pathlib import Path
from typing import Any

from gem_cli.training.metrics_file import MetricsFile
from gem_cli.training.run_folder import RunFolder
from gemps.plain_values import to_dict
from gemps.v1 import history_pb2, run_pb2, status_pb2

EVIL = '<img src=x onerror="alert(1)">'


def status(*, telemetry: bool = True, **fields: Any) -> dict[str, Any]:
    """The last report of a server, as the client library gives it."""
    seen = status_pb2.RunStatus(
        run_state=run_pb2.RUN_STATE_FINISHED,
        settings=run_pb2.RunSettings(rule="gem"),
        run_seconds=20.0,
        commits=90,
        commits_of_process=90,
        parameter_count=1234,
        jain_index=0.9,
        keeps_telemetry=telemetry,
        **fields,
    )
    if telemetry:
        seen.means.commits, seen.means.staleness_mean = 90, 1.9
        seen.means.mean_pi, seen.means.blocked_fraction = 2.08, 0.31
    seen.staleness_mean, seen.mean_pi, seen.blocked_fraction = 0.333, 2.7, 0.08  # of the newest commits
    for rank, name in enumerate(("one", EVIL)):
        worker = seen.workers.add(
            name=name, rank=rank, device="cpu", commits=60 - 30 * rank, loss=0.5, samples=32 * (60 - 30 * rank)
        )
        worker.state = status_pb2.WORKER_STATE_FINISHED
        worker.condition = status_pb2.WORKER_CONDITION_WELL if rank else status_pb2.WORKER_CONDITION_GONE
    if telemetry:
        seen.staleness.bounds.extend([0, 1, 2, 4])
        seen.staleness.counts.extend([50, 30, 0, 7, 3])
    return to_dict(seen)


def history(**fields: Any) -> dict[str, Any]:
    """What a server tells of a run in which something happened everywhere."""
    told = history_pb2.GetHistoryResponse(**fields)
    for index in range(10):
        interval = told.intervals.add(begins=2.0 * index, ends=2.0 * index + 2, commits=9, clock=9 * index + 9)
        interval.loss = 2.0 / (index + 1)
        interval.staleness_mean, interval.staleness_max, interval.jain_index = 1.0, 3, 0.9
        interval.mean_pi, interval.blocked_fraction, interval.clamped_fraction = 1.5, 0.2, 0.1
    for index in range(3):
        told.evaluations.add(run_seconds=5.0 * index, accuracy=0.3 * index, loss=2.0 - 0.5 * index, samples=10)
    told.tensors.names.extend(["weight", EVIL])
    for index in range(4):
        told.tensors.columns.add(run_seconds=5.0 * index + 5, samples=4, mean_pi=[1.0 + index, float("nan")])
    return to_dict(told)


SUMMARY = {"accuracy": 0.6, "test_loss": 1.0, "seed": 7, "settings": {"server": {"eta": 0.1}, "worker": {"task": EVIL}}}


def folder_of(path: Path, seen: dict[str, Any], told: dict[str, Any] | None, summary: Any = None) -> RunFolder:
    folder = RunFolder(path)
    MetricsFile(folder.metrics).append(seen)
    if told is not None:
        folder.write_history(told)
    if summary is not None:
        folder.write_summary(summary)
    return folder
