"""`gemps work` and scripts as processes beside a real server."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from gem_worker import Observer, TaskError, WorkerSettings, evaluate_checkpoint, evaluate_server
from gem_worker.evaluate import tensors_of_payload
from gem_worker.models import create_model
from safetensors.torch import load_file, save_file
from torch import nn

from tests.worker.serving import Process, Processes, ServerThread, processes_in
from tests.worker.test_task_files import write_images, write_mnist

ROOT = Path(__file__).parents[2]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with processes_in(tmp_path) as started:
        yield started


def workers(processes: Processes, address: str, count: int, *arguments: str) -> list[Process]:
    return [
        processes.gemps(f"w{number}", "work", f"--worker-name=w{number}", *arguments, GEMPS_SERVER=address)
        for number in range(count)
    ]


def all_finish(children: list[Process]) -> None:
    for child in children:
        assert child.wait() == 0, child.output


@pytest.mark.long
def test_two_workers_learn_digits_and_their_json_lines_account_for_every_commit(processes: Processes) -> None:
    """Together the workers' logs name each version once: nothing was applied twice, and nothing is missing."""
    server, address = processes.serve("--epochs=30", "--min-workers=2")
    both = workers(processes, address, 2, "--log-format=json", "--log-interval=0")
    all_finish(both)
    assert server.wait() == 0, server.output
    result = evaluate_checkpoint(processes.checkpoint)
    assert result.accuracy >= 0.95
    assert result.samples == 355
    made = []
    for worker in both:
        steps = [line for line in map(json.loads, worker.output.splitlines()) if line["event"] == "training"]
        assert [step["sequence"] for step in steps] == [step["step"] for step in steps] == list(range(1, 661))
        assert all(step["applied"] and not step["duplicate"] for step in steps)
        assert "steps_per_second" not in steps[0]  # it waited for the other worker
        made += [(step["incarnation"], step["clock"]) for step in steps]
    incarnation = made[0][0]
    assert sorted(made) == [(incarnation, clock) for clock in range(2, 1322)]


@pytest.mark.long
def test_evaluations_of_a_server_and_of_its_checkpoint_agree_exactly(processes: Processes, tmp_path: Path) -> None:
    settings = WorkerSettings(model="cnn")
    with ServerThread(steps=50, data_dir=tmp_path / "state") as server:
        all_finish(workers(processes, server.address, 1, "--model=cnn"))
        of_server = evaluate_server(server.address, settings, report_as="test")
        with Observer(server.address) as observer:
            reported = observer.get_status()["last_evaluation"]
        server.stop()
        of_file = evaluate_checkpoint(server.checkpoint, settings)
    assert (of_file.loss, of_file.accuracy) == (of_server.loss, of_server.accuracy)
    assert (reported["loss"], reported["accuracy"]) == (of_server.loss, of_server.accuracy)
    assert (reported["samples"], reported["evaluator"]) == (355, "test")
    assert of_server.version is not None
    assert of_server.version.clock == 51


@pytest.mark.long
def test_the_custom_script_trains_with_two_workers(processes: Processes) -> None:
    server, address = processes.serve("--steps=120", "--min-workers=2")
    script = str(ROOT / "examples" / "custom_training.py")
    scripts = [
        processes.start(name, script, GEMPS_SERVER=address, GEMPS_WORKER_NAME=name) for name in ("left", "right")
    ]
    all_finish(scripts)
    assert server.wait() == 0, server.output
    assert "left" in server.output
    for script_process in scripts:
        found = re.search(r"worker [01]: 120 steps, accuracy on held-out digits (0\.\d+|1\.0)", script_process.output)
        assert found is not None, script_process.output
        assert float(found[1]) > 0.9


@pytest.mark.long
@pytest.mark.parametrize("task", ["mnist", "imagefolder", "generated-images"])
def test_tasks_with_files_and_models_of_torchvision_train(task: str, processes: Processes, tmp_path: Path) -> None:
    arguments = [f"--task={task}", f"--dataset-dir={tmp_path / 'data'}", "--batch-size=4", "--image-size=64"]
    if task == "mnist":
        write_mnist(tmp_path / "data" / "MNIST" / "raw")
    elif task == "imagefolder":
        write_images(tmp_path / "data")
    else:
        arguments += ["--generated-samples=8", "--generated-classes=4", "--model=resnet18"]
    server, address = processes.serve("--steps=2")
    all_finish(workers(processes, address, 1, *arguments))
    assert server.wait() == 0, server.output
    assert load_file(processes.checkpoint)


@pytest.mark.long
def test_json_lines_are_one_object_a_line_and_end_with_the_split_of_the_time(processes: Processes) -> None:
    _, address = processes.serve("--steps=30")
    (worker,) = workers(processes, address, 1, "--log-format=json", "--log-interval=0.01")
    all_finish([worker])
    lines = [json.loads(line) for line in worker.output.splitlines()]
    assert [lines[0]["event"], lines[1]["event"], lines[-1]["event"]] == ["joined", "training", "ended"]
    assert {line["worker"] for line in lines} == {"w0"}
    assert lines[2].keys() >= {"step", "epoch", "loss", "eta", "steps_per_second", "staleness", "mean_pi"}
    end = lines[-1]
    assert (end["steps"], end["skipped"], end["dropped"]) == (30, 0, 0)
    assert sum(end[f"{part}_percent"] for part in ("compute", "copy", "exchange")) == pytest.approx(100, abs=0.2)


@pytest.mark.parametrize(
    ("stop", "code", "reason"),
    [
        pytest.param("interrupt", 130, "interrupted", marks=pytest.mark.long),
        ("terminate", 0, "terminated"),
    ],
)
def test_a_stopped_worker_leaves_the_run(stop: str, code: int, reason: str, processes: Processes) -> None:
    server, address = processes.serve()
    (worker,) = workers(processes, address, 1, "--log-interval=0.1")
    worker.until_log_has("training:")
    getattr(worker, stop)()
    assert worker.wait() == code, worker.output
    assert f"ended: {reason}" in worker.output
    assert "Traceback" not in worker.output
    server.until_log_has(f"left: {reason}")


@pytest.mark.long
def test_a_worker_may_start_before_its_server(processes: Processes, tmp_path: Path) -> None:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (worker,) = workers(processes, f"127.0.0.1:{port}", 1)
    worker.until_log_has("waiting-for-server")
    server = processes.gemps("server", "serve", f"--bind=127.0.0.1:{port}", "--steps=5", "--exit-when-finished")
    all_finish([worker])
    assert server.wait() == 0, server.output
    assert re.search(r"ended: the run is finished steps=5 .*compute_percent=", worker.output)


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["--task=mnist", "--dataset-dir=/nowhere"], 1, "--dataset-dir, or add --download"),
        pytest.param(["--model=resnet18"], 1, "use --model cnn or mlp", marks=pytest.mark.long),
    ],
)
def test_an_error_is_one_line_that_names_the_fix(
    arguments: list[str], code: int, expected: str, processes: Processes
) -> None:
    (worker,) = workers(processes, "127.0.0.1:1", 1, *arguments)
    assert worker.wait() == code
    assert expected in worker.output
    assert len(worker.output.splitlines()) == 1


def test_a_file_of_another_model_or_none_is_refused_with_the_fix(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    with pytest.raises(TaskError, match=r"does not exist; give a model.safetensors"):
        evaluate_checkpoint(tmp_path)
    file.write_bytes(b"nothing")
    with pytest.raises(TaskError, match="cannot be read as safetensors"):
        evaluate_checkpoint(file)
    save_file(nn.Linear(64, 10).state_dict(), file)
    with pytest.raises(
        TaskError,
        match=r"does not hold the model mlp of the task digits; name the right --task .*Missing key[^\n]* \.\.\.\)$",
    ):
        evaluate_checkpoint(file)
    save_file(create_model("mlp", (1, 8, 8), 10, seed=0).state_dict(), file)
    result = evaluate_checkpoint(tmp_path)
    assert result.accuracy < 0.5
    assert result.version is None


def test_a_payload_becomes_the_state_dict_of_its_layout() -> None:
    from gem_worker.flat_model import FlatModel
    from gem_worker.transfer import Transfer

    from gem_core.wire_types import WireType
    from tests.worker.zoo import ZOO, make

    for kind in ZOO:
        model = make(kind)
        flat = FlatModel(model)
        payload = Transfer(flat, WireType.FLOAT32, WireType.FLOAT32).first_payload()
        tensors = tensors_of_payload(flat.layout, payload)
        other = make(kind, seed=7)
        missing, unexpected = other.load_state_dict(tensors, strict=False)
        assert not unexpected
        frozen = {name for name, value in model.named_parameters(remove_duplicate=False) if not value.requires_grad}
        assert set(missing) == frozen
        for name, value in model.state_dict().items():
            if name in frozen:
                continue
            assert torch.equal(
                other.state_dict()[name], value.float().to(value.dtype) if value.is_floating_point() else value
            )
