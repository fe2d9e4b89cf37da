"""Loss and accuracy on held-out samples."""

import textwrap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from gem_core.layout import Layout, TensorKind
from gem_core.regular_files import check_regular
from gem_worker.adapter import read_description, write_adapter
from gem_worker.client import ClientSettings, Observer, Version
from gem_worker.devices import device_for
from gem_worker.errors import TaskError
from gem_worker.models import model_for_task
from gem_worker.score import score
from gem_worker.settings import WorkerSettings
from gem_worker.tasks import TaskOptions, create_task

LOAD_YOURS = "gemps.load(FOLDER).load_into(model)"


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Scores of held-out samples.

    Attributes:
        loss: mean cross-entropy, in nats a label.
        accuracy: 0 to 1.
        version: None for a file.
        bits_per_character: None without a text.
    """

    loss: float
    accuracy: float
    samples: int
    version: Version | None
    bits_per_character: float | None = None


class HeldOut:
    """Task's held-out samples and model. Raises TaskError if one is unavailable."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.task = create_task(settings.task, TaskOptions.from_settings(settings))
        self.model_name = settings.model or self.task.default_model
        self._device = device_for(0, settings.device)
        self._batch_size = settings.batch_size
        self._model = model_for_task(self.task, self.model_name, seed=0).to(self._device)

    def evaluate(self, tensors: dict[str, Tensor], source: str, version: Version | None = None) -> EvaluationResult:
        """Load strictly and evaluate. Raises TaskError (naming `source`) if they do not fit."""
        try:
            self._model.load_state_dict(tensors)
        except RuntimeError as error:
            details = textwrap.shorten(str(error).partition(":")[2], 120, placeholder=" ...")
            raise TaskError(
                f"{source} does not hold the model {self.model_name} of the task {self.task.name}; name the right "
                f"--task and --model, or load it into a model of yours: {LOAD_YOURS} ({details})"
            ) from error
        loss, accuracy = score(self._model, self.task.test, self._device, self._batch_size)
        return EvaluationResult(loss, accuracy, len(self.task.test), version, self.task.bits_per_character(loss))


def evaluate_checkpoint(path: Path | str, settings: WorkerSettings | None = None) -> EvaluationResult:
    """Evaluate `path`, or model.safetensors in that folder.

    Raises TaskError if it is missing, damaged, or of another model.
    """
    return HeldOut(settings or WorkerSettings()).evaluate(read_model(path), str(path))


def read_model(path: Path | str) -> dict[str, Tensor]:
    """Read `path`, or model.safetensors in that folder. Raises TaskError if missing or damaged."""
    file = Path(path)
    if file.is_dir():
        file = file / "model.safetensors"
    try:
        check_regular(file)
        return load_file(file)
    except FileNotFoundError:
        raise TaskError(f"{file} does not exist; give a model.safetensors, or the folder that holds one") from None
    except (OSError, SafetensorError) as error:
        raise TaskError(f"{file} cannot be read as safetensors ({error})") from error


def evaluate_server(
    address: str,
    settings: WorkerSettings | None = None,
    *,
    report_as: str = "",
    client_settings: ClientSettings | None = None,
) -> EvaluationResult:
    """Evaluate a server's newest parameters without joining the run.

    `address` (HOST:PORT) overrides the settings. `report_as`: name to report the result under. Raises
    TaskError (other model), ServerUnavailableError, or NotInitializedError (no parameters yet).
    """
    with Observer(address, settings=client_settings) as observer:
        pulled = observer.pull()
        assert pulled is not None  # None only answers a known_version
        tensors = tensors_of_payload(pulled.layout, pulled.payload)
        result = HeldOut(settings or WorkerSettings()).evaluate(tensors, f"the server {address}", pulled.version)
        if report_as:
            observer.report_evaluation(
                pulled.version,
                loss=result.loss,
                accuracy=result.accuracy,
                samples=result.samples,
                bits_per_character=result.bits_per_character,
                evaluator=report_as,
            )
    return result


def export_adapter(
    folder: Path, *, path: Path | None = None, address: str = "", client_settings: ClientSettings | None = None
) -> None:
    """Write the adapter of a model.safetensors, its folder, or a server to `folder`, in PEFT's format.

    Raises TaskError without one, else as `read_model` and `evaluate_server`.
    """
    if path is not None:
        write_adapter(folder, read_description(path), read_model(path), str(path))
        return
    with Observer(address, settings=client_settings) as observer:
        pulled = observer.pull()
    assert pulled is not None
    tensors = tensors_of_payload(pulled.layout, pulled.payload)
    write_adapter(folder, pulled.adapter, tensors, f"the server {address}")


def tensors_of_payload(layout: Layout, payload: memoryview | bytes | bytearray) -> dict[str, Tensor]:
    """Convert a FLOAT32 payload to a state_dict, without FROZEN tensors."""
    tensors: dict[str, Tensor] = {}
    offset = 0
    for spec in (*layout.parameters, *layout.buffers):
        own_type: torch.dtype = getattr(torch, spec.element_type.value)
        travels_as = torch.float32 if spec.kind is TensorKind.PARAMETER else own_type
        size = spec.elements * travels_as.itemsize
        # Copy: the slice may be unaligned or read-only.
        data = torch.from_numpy(np.frombuffer(payload, np.uint8, size, offset).copy())
        typed = data.view(travels_as) if size else torch.empty(0, dtype=travels_as)  # no view of nothing
        value = typed.view(spec.shape).to(own_type)
        tensors |= dict.fromkeys((spec.name, *spec.aliases), value)
        offset += size
    return tensors
