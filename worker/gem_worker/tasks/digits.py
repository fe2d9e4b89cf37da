"""scikit-learn's handwritten digits."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gem_worker.digits_file import CLASSES, MAXIMUM, SIDE, read_digits
from gem_worker.tasks.options import TaskOptions
from gem_worker.tasks.samples import Task, TensorSamples

_MNIST_SIDE = 28


def load_digits(_: TaskOptions) -> Task:
    """Load 8 x 8 digits. Raises TaskError without scikit-learn."""
    images, labels, held_out = _read_digits()
    return _task("digits", images, labels, held_out, "mlp")


def load_digits28(_: TaskOptions) -> Task:
    """Load digits at 28 x 28 pixels, interpolated bilinearly."""
    images, labels, held_out = _read_digits()
    enlarged = functional.interpolate(images, size=(_MNIST_SIDE, _MNIST_SIDE), mode="bilinear", align_corners=False)
    return _task("digits28", enlarged, labels, held_out, "cnn")


def _read_digits() -> tuple[Tensor, Tensor, Tensor]:
    """Images (float32 [samples, 1, 8, 8]), labels, held-out mask."""
    digits = read_digits()
    images = torch.from_numpy(digits.pixels.astype(np.float32)).view(-1, 1, SIDE, SIDE)
    return images, torch.from_numpy(digits.labels), torch.from_numpy(digits.held_out)


def _task(name: str, images: Tensor, labels: Tensor, held_out: Tensor, default_model: str) -> Task:
    train, test = (
        TensorSamples(images[mask], labels[mask], mean=(0.0,), deviation=(float(MAXIMUM),))
        for mask in (~held_out, held_out)
    )
    return Task(name, (1, *images.shape[2:]), CLASSES, train, test, default_model)
