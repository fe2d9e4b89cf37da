"""`gemps export-task`, as a user types it."""

import json
from pathlib import Path

import numpy as np
import torch
from gem_cli.errors import FAILED, USAGE
from gem_worker.models import model_for_task
from gem_worker.tasks import Samples, create_task

from tests.cli.processes import PATIENCE, command_without, gemps, gemps_here, started


def test_the_file_has_the_very_samples_that_the_python_task_trains_on_and_holds_out(tmp_path: Path) -> None:
    done = gemps("export-task", "digits", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "digits.json: 1442 samples to train on, 355 held out\n"
    found = json.loads((tmp_path / "digits.json").read_text(encoding="utf-8"))
    assert {name: found[name] for name in ("task", "features", "classes", "maximum", "hidden", "activation")} == {
        "task": "digits", "features": 64, "classes": 10, "maximum": 16, "hidden": [64], "activation": "relu",
    }  # fmt: skip
    task = create_task("digits")
    for part, samples in (("train", task.train), ("held_out", task.test)):
        inputs, labels = _all(samples)
        assert torch.equal(torch.tensor(found[part]["inputs"]) / found["maximum"], inputs.flatten(1))
        assert found[part]["labels"] == labels.tolist()


def test_the_file_has_the_layout_of_the_python_workers_model(tmp_path: Path) -> None:
    file = tmp_path / "digits.json"
    assert gemps_here("export-task", "digits", "--output", str(file)).returncode == 0
    exported = json.loads(file.read_text(encoding="utf-8"))["layout"]
    model = model_for_task(create_task("digits"), "", seed=0)
    assert [(one["name"], tuple(one["shape"])) for one in exported] == [
        (name, tuple(value.shape)) for name, value in model.named_parameters()
    ]
    assert {(one["element_type"], one["kind"]) for one in exported} == {("float32", "parameter")}
    assert not list(model.named_buffers())
    assert sum(isinstance(one, torch.nn.ReLU) for one in model.modules()) == 1


def test_it_needs_no_torch(tmp_path: Path) -> None:
    file, log = tmp_path / "digits.json", tmp_path / "log"
    without_torch = command_without(("torch", "torchvision"), "export-task", "digits", "--output", str(file))
    with started(without_torch, log) as process:
        assert process.wait(PATIENCE) == 0, log.read_text(encoding="utf-8")
    assert len(json.loads(file.read_text(encoding="utf-8"))["train"]["labels"]) == 1442


def test_a_file_that_is_there_is_replaced_as_a_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    file = tmp_path / "samples.json"
    file.write_text("old", encoding="utf-8")
    for _ in range(2):
        assert gemps_here("export-task", "digits", "--output", str(file)).returncode == 0
    assert json.loads(file.read_text(encoding="utf-8"))["task"] == "digits"
    assert list(tmp_path.iterdir()) == [file]


def test_what_cannot_be_exported_is_one_line_with_the_fix_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for arguments, code, says in (
        (("mnist",), USAGE, "there is digits"),
        (("digits", "--output", "nowhere/digits.json"), FAILED, "nowhere/digits.json"),
        (("digits", "--output", "folder"), FAILED, "--output folder"),
    ):
        done = gemps_here("export-task", *arguments, cwd=tmp_path)
        assert done.returncode == code
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1
        assert says in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert list((tmp_path / "folder").iterdir()) == []


def _all(samples: Samples) -> tuple[torch.Tensor, torch.Tensor]:
    return samples.batch(np.arange(len(samples)))
