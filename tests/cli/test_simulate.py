"""`gemps simulate`, as a user types it."""

import json
from pathlib import Path

import numpy as np
import pytest
from gem_cli.errors import USAGE

from tests.cli.processes import gemps, gemps_here

SMALL = ("--workers", "3", "--steps", "4", "--batch-size", "8")


def test_a_simulation_tells_what_came_of_it_and_writes_it_down(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    done = gemps("simulate", *SMALL, "--evaluate-every", "6", "--output", str(folder))
    assert done.returncode == 0, done.stderr
    assert "after 6 commits, 2 virtual seconds: loss" in done.stdout
    assert "12 commits in 4 virtual seconds, fairness 1.0000" in done.stdout
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert result["settings"]["workers"] == 3
    assert [one["commits"] for one in result["evaluations"]] == [6, 12]
    commits = np.load(folder / "commits.npz")
    assert commits["rank"].tolist() == [0, 1, 2] * 4
    evaluated = json.loads(gemps_here("evaluate", str(folder / "model.safetensors"), "--json").stdout)
    assert evaluated["loss"] == pytest.approx(result["summary"]["test_loss"], rel=1e-5)  # in other batches


def test_json_is_one_object_and_nothing_else() -> None:
    done = gemps_here("simulate", *SMALL, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["commits"] == 12
    assert found["evaluations"][-1]["training_loss"] == found["training_loss"]


def test_json_of_a_diverged_run_is_json(tmp_path: Path) -> None:
    diverging = ("--rule", "downpour", "--eta", "1e30", "--model", "mlp", "--output", str(tmp_path))
    done = gemps_here("simulate", *SMALL, *diverging, "--json")
    assert done.returncode == 0, done.stderr
    for text in (done.stdout, (tmp_path / "result.json").read_text(encoding="utf-8")):
        assert "null" in text
        json.loads(text, parse_constant=pytest.fail)


def test_a_link_takes_its_time_and_shards_give_some_of_it_back() -> None:
    link = ("--network-rate", "1e5", "--staging-buffers", "1")
    found = [
        json.loads(gemps_here("simulate", *SMALL, *link, *more, "--json").stdout) for more in ((), ("--shards", "2"))
    ]
    assert [one["commits"] for one in found] == [12, 12]
    assert found[0]["virtual_seconds"] > found[1]["virtual_seconds"] > 4


def test_what_cannot_be_simulated_is_one_line_with_the_fix(tmp_path: Path) -> None:
    for arguments, code, says in (
        ((), USAGE, "give --steps, --commits or --seconds"),
        ((*SMALL, "--slow", "9x2"), USAGE, "--slow 9x2 names worker 9, and there are 3"),
        ((*SMALL, "--shards", "2"), USAGE, "--shards 2 divides the payloads of --network-rate"),
        ((*SMALL, "--rule-settings", "mu=1"), USAGE, "rule 'gem' has no setting 'mu'"),
        ((*SMALL, "--task", "mnist", "--dataset-dir", str(tmp_path)), 1, "--download"),
        (("--follow", str(tmp_path / "nothing")), USAGE, "there is no file"),
    ):
        done = gemps_here("simulate", *arguments)
        assert done.returncode == code, done.stderr
        assert says in done.stderr
        assert done.stderr.strip().count("\n") == 0
