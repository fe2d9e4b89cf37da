"""`gemps evaluate`: of a file and of a server, with one result."""

import json
from pathlib import Path

import pytest
from gem_cli.errors import FAILED, USAGE

from tests.cli.processes import gemps, gemps_here, json_lines, served, stop


@pytest.mark.long
def test_a_server_and_its_checkpoint_evaluate_to_the_same_figures(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with served(tmp_path, "--commits", "40", "--eta", "0.1", "--data-dir", str(state)) as (address, process):
        assert gemps("work", "--server", address).returncode == 0
        of_server = gemps("evaluate", "--server", address, "--report", "--json")
        assert of_server.returncode == 0, of_server.stderr
        status = json_lines(gemps("status", address, "--json").stdout)[0]
        assert stop(process) == 0
    of_file = gemps("evaluate", str(state / "latest" / "model.safetensors"), "--json")
    assert of_file.returncode == 0, of_file.stderr
    first, second = json.loads(of_server.stdout), json.loads(of_file.stdout)
    assert first["version"]["clock"] == 41
    assert {name: first[name] for name in ("loss", "accuracy", "samples")} == {
        name: second[name] for name in ("loss", "accuracy", "samples")
    }
    assert 0.5 < first["accuracy"] <= 1
    assert status["last_evaluation"]["accuracy"] == first["accuracy"]


@pytest.mark.long
def test_another_model_is_one_line_with_the_fix(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with served(tmp_path, "--commits", "2", "--data-dir", str(state)) as (address, process):
        assert gemps("work", "--server", address, "--model", "mlp").returncode == 0
        other = gemps("work", "--server", address, "--model", "cnn")
        assert other.returncode == FAILED
        assert other.stderr.strip().count("\n") == 0
        assert "conv1.weight" in other.stderr
        stop(process)
    done = gemps("evaluate", str(state / "latest" / "model.safetensors"), "--model", "cnn")
    assert done.returncode == FAILED
    assert "--model" in done.stderr


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = gemps_here("evaluate", str(tmp_path / "model.safetensors"))
    assert done.returncode == FAILED
    assert done.stderr.strip().count("\n") == 0


def test_an_address_where_a_file_is_expected_names_the_flag() -> None:
    done = gemps_here("evaluate", "127.0.0.1:50051")
    assert done.returncode == USAGE
    assert "write --server 127.0.0.1:50051" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("named", ["", "model.safetensors"])
def test_the_run_of_a_script_names_the_folder_to_load(named: str, tmp_path: Path) -> None:
    settings = {"command": ["python", "mine.py"], "worker": {}}
    (tmp_path / "summary.json").write_text(json.dumps({"settings": settings}), encoding="utf-8")
    done = gemps_here("evaluate", str(tmp_path / named))
    assert done.returncode == USAGE
    assert f"gemps.load({str(tmp_path)!r})" in done.stderr


def test_a_file_and_a_server_together_are_refused() -> None:
    assert gemps_here("evaluate", "model.safetensors", "--server", "127.0.0.1:9").returncode == USAGE


def test_neither_a_file_nor_a_server_says_what_to_give() -> None:
    done = gemps_here("evaluate")
    assert done.returncode == USAGE
    assert done.stderr.count("\n") == 1
    for text in ("MODEL_FILE", "--server"):
        assert text in done.stderr


def test_the_environments_server_is_one_to_evaluate() -> None:
    done = gemps_here("evaluate", env={"GEMPS_SERVER": "127.0.0.1:9"})
    assert done.returncode == FAILED
    assert "127.0.0.1:9" in done.stderr
