"""Models of `gemps work`."""

from collections.abc import Sequence

import torch
from torch import nn

from gem_worker.errors import TaskError
from gem_worker.model_names import explain_unknown, explain_unsuitable
from gem_worker.model_sizes import DEFAULT_SIZES, TransformerSizes
from gem_worker.models.cnn import Cnn
from gem_worker.models.mlp import mlp
from gem_worker.models.transformer import Transformer
from gem_worker.tasks.samples import Task
from gem_worker.tasks.torchvision_import import import_torchvision

__all__ = ["create_model", "model_for_task"]

# Several outputs during training by default.
_WITH_AUXILIARY_HEADS = ("googlenet", "inception_v3")


def model_for_task(task: Task, name: str, seed: int) -> nn.Module:
    """Named model, or the task's own ("")."""
    return create_model(name or task.default_model, task.input_shape, task.classes, seed, task.sizes)


def create_model(
    name: str,
    input_shape: tuple[int, ...],
    classes: int,
    seed: int,
    sizes: TransformerSizes = DEFAULT_SIZES,
) -> nn.Module:
    """CPU model from `seed`; keeps the global random state.

    `input_shape`: (channels, height, width), or (positions,) of a text. Raises TaskError if the model is unknown or
    does not fit.
    """
    if unsuitable := explain_unsuitable(name, is_text=len(input_shape) == 1):
        raise TaskError(unsuitable)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name == "mlp":
            return mlp(input_shape, classes)
        if name == "cnn":
            return Cnn(input_shape, classes)
        if name == "transformer":
            return Transformer(input_shape[0], classes, sizes)
        return _of_torchvision(name, input_shape, classes)


def _of_torchvision(name: str, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    models = import_torchvision("models", f"the model {name!r}")
    known: Sequence[str] = models.list_models(module=models)
    if name not in known:
        raise TaskError(explain_unknown(name, known))
    if input_shape[0] != 3:
        raise TaskError(f"{name} takes images of 3 channels, this task has {input_shape[0]}; use --model cnn or mlp")
    extra = {"aux_logits": False, "init_weights": True} if name in _WITH_AUXILIARY_HEADS else {}
    model: nn.Module = models.get_model(name, weights=None, num_classes=classes, **extra)
    return model
