"""What importing the package costs, what it offers, and what its settings accept."""

from pathlib import Path

import gem_worker
import pytest
import torch
from gem_worker import TaskError, WorkerSettings, device_for
from gem_worker.tasks import TaskOptions
from pydantic import ValidationError

from tests.worker.serving import processes_in

NO_TORCH = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchvision", "sklearn", "safetensors"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
import gem_worker
from gem_worker import Client, ClientSettings, DivergedError, Observer, RunFinishedError
from gem_worker import UnsupportedModelError, WorkerSettings
WorkerSettings()
try:
    gem_worker.ParameterServer
except ModuleNotFoundError as error:
    assert error.name == "torch", error
else:
    raise AssertionError("ParameterServer without torch")
"""


def test_the_torch_free_part_works_where_torch_is_not_installed(tmp_path: Path) -> None:
    with processes_in(tmp_path) as processes:
        child = processes.start("no-torch", "-c", NO_TORCH)
        assert child.wait() == 0, child.output


def test_importing_the_package_imports_neither_torch_nor_grpc(tmp_path: Path) -> None:
    code = "import sys, gem_worker; assert not {'torch', 'grpc', 'numpy', 'numba'} & {*sys.modules}"
    with processes_in(tmp_path) as processes:
        child = processes.start("import", "-c", code)
        assert child.wait() == 0, child.output


def test_a_worker_does_not_load_numba(tmp_path: Path) -> None:
    """It would cost each worker 60 MB (docs/design.md, section 2)."""
    code = "import sys, gem_worker; gem_worker.work, gem_worker.ParameterServer; assert 'numba' not in sys.modules"
    with processes_in(tmp_path) as processes:
        child = processes.start("import", "-c", code)
        assert child.wait() == 0, child.output


def test_every_public_name_exists() -> None:
    for name in gem_worker.__all__:
        assert getattr(gem_worker, name).__name__ == name
        assert name in dir(gem_worker)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = gem_worker.nothing


def test_every_setting_has_an_explanation_and_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(len(field.description or "") > 20 for field in WorkerSettings.model_fields.values())
    monkeypatch.setenv("GEMPS_SERVER", "example:1")
    monkeypatch.setenv("GEMPS_BATCH_SIZE", "7")
    settings = WorkerSettings(batch_size=8)
    assert (settings.server, settings.batch_size) == ("example:1", 8)
    with pytest.raises(ValidationError, match="frozen"):
        settings.batch_size = 9


def test_task_options_have_the_settings_defaults() -> None:
    assert TaskOptions.from_settings(WorkerSettings()) == TaskOptions()


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cpu:0", "cuda:-1", ""])
def test_an_impossible_device_is_refused_as_a_setting(device: str) -> None:
    with pytest.raises(ValidationError, match="use auto, cpu, cuda, cuda:NUMBER or mps"):
        WorkerSettings(device=device)


@pytest.mark.parametrize("wire", ["float64", "int2", ""])
def test_an_unknown_wire_type_is_refused_as_a_setting(wire: str) -> None:
    with pytest.raises(ValidationError):
        WorkerSettings(delta_wire=wire)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_cuda_auto_is_the_cpu_and_cuda_is_refused() -> None:
    assert device_for(3) == torch.device("cpu")
    assert device_for(0, "cpu") == torch.device("cpu")
    for choice in ("cuda", "cuda:1"):
        with pytest.raises(TaskError, match=r"CUDA.*use --device auto or cpu"):
            device_for(0, choice)


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="this machine has an MPS device")
def test_without_mps_it_is_refused() -> None:
    with pytest.raises(TaskError, match="no MPS device here; use --device auto"):
        device_for(0, "mps")
