"""The default task: scikit-learn's 1 797 real handwritten digits, 8 x 8 pixels. Nothing is downloaded."""

import numpy as np
import torch
from numpy.typing import NDArray

from gem_worker.errors import TaskError
from gem_worker.tasks.options import TaskOptions
from gem_worker.tasks.samples import Task, TensorSamples

# Every fifth image of each class is held out.
_HELD_OUT_EVERY = 5


def load_digits(_: TaskOptions) -> Task:
    """Raises TaskError where scikit-learn is not installed."""
    try:
        from sklearn.datasets import load_digits as load
    except ImportError as error:
        raise TaskError('the task digits needs scikit-learn: pip install "gemps[worker]"') from error
    data = load()
    held_out = held_out_mask(data.target)
    images = torch.from_numpy(data.images.astype(np.float32)).unsqueeze(1)
    labels = torch.from_numpy(data.target.astype(np.int64))
    train, test = (
        TensorSamples(images[mask], labels[mask], mean=(0.0,), deviation=(16.0,))
        for mask in (torch.from_numpy(~held_out), torch.from_numpy(held_out))
    )
    return Task("digits", (1, 8, 8), 10, train, test, "mlp")


def held_out_mask(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """True for the held-out 20 %: of each class every fifth sample in file order.

    Stratified by construction, and fixed: no seed, no random generator and no version of a library changes it.
    """
    mask = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        mask[np.flatnonzero(labels == label)[_HELD_OUT_EVERY - 1 :: _HELD_OUT_EVERY]] = True
    return mask
