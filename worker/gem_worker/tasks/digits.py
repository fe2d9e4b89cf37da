"""The default task: scikit-learn's 1 797 real handwritten digits, 8 x 8 pixels. Nothing is downloaded.

`digits28` has the same ones, enlarged to the size of MNIST's, for which the paper's CNN was made.
"""

import importlib.util
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from gem_worker.errors import TaskError
from gem_worker.tasks.options import TaskOptions
from gem_worker.tasks.samples import Task, TensorSamples

# Every fifth image of each class is held out.
_HELD_OUT_EVERY = 5
_MNIST_SIDE = 28


def load_digits(_: TaskOptions) -> Task:
    """Raises TaskError where scikit-learn is not installed."""
    images, labels, held_out = _read()
    return _task("digits", images, labels, held_out, "mlp")


def load_digits28(_: TaskOptions) -> Task:
    """The same samples at 28 x 28 pixels, interpolated bilinearly. Raises TaskError as `load_digits` does."""
    images, labels, held_out = _read()
    enlarged = functional.interpolate(images, size=(_MNIST_SIDE, _MNIST_SIDE), mode="bilinear", align_corners=False)
    return _task("digits28", enlarged, labels, held_out, "cnn")


def _read() -> tuple[Tensor, Tensor, Tensor]:
    """(images, float32 [samples, 1, 8, 8] from 0 to 16; labels; which are held out)."""
    rows = np.loadtxt(_file(), delimiter=",", dtype=np.int64)
    pixels, targets = rows[:, :-1], rows[:, -1]
    images = torch.from_numpy(pixels.astype(np.float32)).view(-1, 1, 8, 8)
    return images, torch.from_numpy(targets), torch.from_numpy(held_out_mask(targets))


def _task(name: str, images: Tensor, labels: Tensor, held_out: Tensor, default_model: str) -> Task:
    train, test = (
        TensorSamples(images[mask], labels[mask], mean=(0.0,), deviation=(16.0,)) for mask in (~held_out, held_out)
    )
    return Task(name, (1, *images.shape[2:]), 10, train, test, default_model)


def _file() -> Path:
    """The file that `sklearn.datasets.load_digits` reads.

    It is found without importing scikit-learn, which takes more than a second of each worker's start. A row is the 64
    pixels (0 to 16) of an image and its label.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise TaskError('the task digits needs scikit-learn: pip install "gemps[worker]"')
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"


def held_out_mask(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """True for the held-out 20 %: of each class every fifth sample in file order.

    Stratified by construction, and fixed: no seed, no random generator and no version of a library changes it.
    """
    mask = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        mask[np.flatnonzero(labels == label)[_HELD_OUT_EVERY - 1 :: _HELD_OUT_EVERY]] = True
    return mask
