"""Excerpts of tasks."""

from dataclasses import replace

import numpy as np
from gem_worker.tasks import Samples, Task
from gem_worker.tasks.samples import Batch
from numpy.typing import NDArray

_TRAIN_STRIDE, _TEST_STRIDE = 256, 3


class _Excerpt(Samples):
    def __init__(self, samples: Samples, stride: int) -> None:
        self._samples = samples
        self._stride = stride

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def is_slow(self) -> bool:
        return self._samples.is_slow

    def numbers(self) -> NDArray[np.int64]:
        return self._samples.numbers()[:: self._stride]

    def shuffled(self, generator: np.random.Generator) -> NDArray[np.int64]:
        return self._samples.shuffled(generator)

    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        return self._samples.batch(numbers)


def excerpt_of(task: Task) -> Task:
    """Score every 256th training and third held-out sample."""
    return replace(task, train=_Excerpt(task.train, _TRAIN_STRIDE), test=_Excerpt(task.test, _TEST_STRIDE))
