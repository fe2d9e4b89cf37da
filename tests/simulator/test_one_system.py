"""Simulator and service are one system: the order of either, forced upon the other, gives the same parameters."""

import json
from pathlib import Path

import pytest

from gem_trace import read_records
from gem_trace.files import map_file
from tests.cli.processes import gemps, gemps_here

MODEL = ("--model", "cnn", "--batch-size", "16")


def shown(*arguments: str) -> dict[str, object]:
    done = gemps_here(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace of two processes that were served as they came, with narrow types, local steps and a direction."""
    folder = tmp_path_factory.mktemp("recorded")
    wires = ("--delta-wire", "bfloat16", "--parameter-wire", "bfloat16")
    run = ("--workers", "2", "--steps", "12", "--record", str(folder / "run.trace"), "--run-dir", str(folder / "run"))
    rule = ("--local-steps", "2", "--direction", "auto", "--clip-norm", "0.5", "--eta", "0.002")
    done = gemps("train", *MODEL, *wires, *rule, *run)
    assert done.returncode == 0, done.stderr
    return folder / "run.trace"


@pytest.mark.long
def test_the_recorded_order_of_real_processes_gives_the_same_parameters_in_the_simulator(recorded: Path) -> None:
    simulated = shown("simulate", "--follow", str(recorded), "--model", "cnn")
    replayed = shown("replay", str(recorded))
    assert simulated["digest"] == replayed["digest"]
    assert simulated["commits"] == replayed["commits"] == 24
    assert simulated["compared_end"] is True


@pytest.mark.long
def test_what_a_following_computes_otherwise_is_named(recorded: Path, tmp_path: Path) -> None:
    done = gemps_here("simulate", "--follow", str(recorded), "--model", "mlp")
    assert done.returncode == 1
    assert "is of another model" in done.stderr
    done = gemps_here("simulate", "--follow", str(recorded), "--steps", "3")
    assert (done.returncode, "--follow takes --steps from the trace: leave that out" in done.stderr) == (2, True)
    damaged = bytearray(recorded.read_bytes())
    seed = damaged.index(b'"seed":0')
    damaged[seed : seed + 8] = b'"seed":1'  # the checksum of that record is not looked at here
    (tmp_path / "other.trace").write_bytes(damaged)
    done = gemps_here("simulate", "--follow", str(tmp_path / "other.trace"), "--model", "cnn")
    assert done.returncode == 1
    assert "begins with other parameters than the model has at seed 1" in done.stderr


@pytest.mark.long
def test_a_recorded_run_without_an_end_is_not_called_the_same(recorded: Path, tmp_path: Path) -> None:
    records = list(read_records(map_file(recorded)))
    assert records[-1].event["event"] == "ended"
    (tmp_path / "cut.trace").write_bytes(recorded.read_bytes()[: records[-1].offset])
    done = gemps_here("simulate", "--follow", str(tmp_path / "cut.trace"), "--model", "cnn")
    assert done.returncode == 1
    assert "the same deltas, bit for bit" in done.stdout
    assert "the trace has no end to compare the parameters with" in done.stderr


@pytest.mark.long
def test_eight_workers_in_turn_train_a_transformer_as_simulated(tmp_path: Path) -> None:
    model = ("--task", "text", "--layers", "1", "--width", "16", "--heads", "2", "--context", "16", "--batch-size", "8")
    rule = ("--direction", "auto", "--clip-norm", "0.5", "--eta", "0.002")
    run = (*model, *rule, "--workers", "8", "--steps", "5", "--order", "round-robin")
    simulated = shown("simulate", *run)
    real_trace = str(tmp_path / "real.trace")
    done = gemps("train", *run, "--record", real_trace, "--run-dir", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert shown("replay", real_trace)["digest"] == simulated["digest"]
    followed = shown("simulate", "--follow", real_trace, *model[:-2])
    assert (followed["digest"], followed["commits"]) == (simulated["digest"], 40)
