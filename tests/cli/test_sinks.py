"""Where the figures of a training go beside its run folder."""

import importlib.util
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from gem_cli.errors import CommandError
from gem_cli.sinks import sinks
from gem_cli.sinks.interface import RunInfo, Scalars, Sink
from gem_cli.sinks.sinks import Sinks, chosen_sinks, known_sinks

SETTINGS = {"server": {"eta": 0.1, "rule": "gem"}, "worker": None}
SUMMARY = {"accuracy": 0.75, "version": 9, "training_loss": 0.5, "interrupted": False}


def status(clock: int, loss: float, evaluated: int | None = None) -> dict[str, Any]:
    seen: dict[str, Any] = {
        "version": {"incarnation": 7, "clock": clock},
        "run_state": "RUN_STATE_TRAINING",
        "run_seconds": clock / 10,
        "loss": loss,
        "commits_per_second": 10.0,
        "staleness_mean": 3.0,
        "mean_pi": 0.5,
        "blocked_fraction": 0.25,
        "jain_index": 1.0,
        "workers": [
            {"name": "a/b c", "state": "WORKER_STATE_TRAINING", "commits": 3, "loss": loss, "staleness_last": 2}
        ],
    }
    if evaluated is not None:
        seen["last_evaluation"] = {"version": {"clock": evaluated}, "loss": 1.5, "accuracy": 0.5}
    return seen


def told(names: tuple[str, ...], folder: Path) -> list[tuple[str, str]]:
    """Tell the sinks of a short run; what they had to say of themselves."""
    said: list[tuple[str, str]] = []
    run = Sinks(names, RunInfo("my-run", folder, SETTINGS), lambda name, text: said.append((name, text)))
    for one in (status(1, 9.0), status(2, 2.0), status(2, 2.0), status(5, 1.0, 4), status(5, 1.0, 4), status(6, 0.5)):
        run.status(one)
        run.evaluation(one)
    run.close(SUMMARY)
    return said


def test_tensorboard_shows_the_curves(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert told(("tensorboard",), tmp_path) == []
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(one.step, one.value) for one in events.Scalars("run/loss")] == [(2, 2.0), (5, 1.0), (6, 0.5)]
    assert [(one.step, one.value) for one in events.Scalars("evaluation/accuracy")] == [(4, 0.5)]
    assert [(one.step, one.value) for one in events.Scalars("test/accuracy")] == [(9, 0.75)]
    assert [one.value for one in events.Scalars("loss by worker/a_b_c")] == [2.0, 1.0, 0.5]
    (settings,) = events.Tensors("settings")
    assert b'"rule": "gem"' in settings.tensor_proto.string_val[0]


class Failing(Sink):
    """Takes one version, and fails at the next."""

    closed = 0

    def __init__(self, run: RunInfo) -> None:
        self._taken = 0

    def write(self, clock: int, seconds: float, scalars: Scalars) -> None:
        self._taken += 1
        if self._taken > 1:
            raise ConnectionError("the disk is elsewhere")

    def close(self, summary: Mapping[str, Any]) -> None:
        Failing.closed += 1


def test_a_sink_that_fails_is_told_once_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = metadata.EntryPoint("failing", f"{__name__}:Failing", sinks.ENTRY_POINTS)
    missing = metadata.EntryPoint("missing", "gem_no_such_package:Sink", sinks.ENTRY_POINTS)
    found = known_sinks() | {"failing": failing, "missing": missing}
    monkeypatch.setattr(sinks, "known_sinks", lambda: found)
    said = told(("failing", "missing", "tensorboard"), tmp_path)
    assert [name for name, _ in said] == ["sink_missing", "sink_failed"]
    assert "gem_no_such_package is not installed" in said[0][1]
    assert said[1][1] == "--sinks failing failed, and the run continues without it: the disk is elsewhere"
    assert Failing.closed == 0
    assert list((tmp_path / "tensorboard").iterdir())


def test_sinks_are_chosen_by_name() -> None:
    assert chosen_sinks("tensorboard, wandb,tensorboard") == ("tensorboard", "wandb")
    assert chosen_sinks("none") == chosen_sinks("") == ()
    with pytest.raises(CommandError, match=r"--sinks tensorbord: there is no such sink; choose of: .*tensorboard"):
        chosen_sinks("tensorbord")
    with pytest.raises(CommandError, match="--sinks none: there is no such sink"):
        chosen_sinks("tensorboard,none")


# Each in a process of its own: they start threads and services, and read the environment when they are imported.
IN_A_PROCESS = """
import sys
from pathlib import Path
from tests.cli.test_sinks import told
said = told((sys.argv[1],), Path(sys.argv[2]))
assert said == [], said
"""


def run_offline(sink: str, folder: Path, **environment: str) -> None:
    command = [sys.executable, "-c", IN_A_PROCESS, sink, str(folder)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def records_of_wandb(content: bytes) -> Iterator[bytes]:
    """W&B's file: 7 bytes, then records as LevelDB's log has them, in parts within blocks of 32 KiB."""
    at, whole = 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768  # a header would not fit
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last part
            yield whole
            whole = b""


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="needs `pip install --group sinks`")
def test_wandb_keeps_the_curves_offline(tmp_path: Path) -> None:
    run_offline("wandb", tmp_path, WANDB_MODE="offline")
    from wandb.proto import wandb_internal_pb2

    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    rows: list[dict[str, Any]] = []
    config: dict[str, Any] = {}
    for data in records_of_wandb(file.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        if record.HasField("history"):
            rows.append(
                {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            )
        for item in record.run.config.update:
            config[item.key] = json.loads(item.value_json)
    assert [row["run/loss"] for row in rows if "run/loss" in row] == [2.0, 1.0, 0.5]
    assert [row["_step"] for row in rows] == [2, 5, 6]
    assert config["server"] == SETTINGS["server"]


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="needs `pip install --group sinks`")
def test_mlflow_keeps_the_curves_in_its_file(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    run_offline("mlflow", tmp_path, MLFLOW_TRACKING_URI=uri)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("gemps")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("my-run", "FINISHED")
    assert run.data.params["server.rule"] == "gem"
    assert run.data.metrics["final/accuracy"] == 0.75
    history = client.get_metric_history(run.info.run_id, "run/loss")
    assert [(one.step, one.value) for one in history] == [(2, 2.0), (5, 1.0), (6, 0.5)]
