"""Sets of labelled samples, and the order in which a worker goes over them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Batch = tuple[Tensor, Tensor]


class Samples(ABC):
    """Labelled samples that can be fetched by number."""

    @abstractmethod
    def __len__(self) -> int:
        """How many there are."""

    @property
    @abstractmethod
    def is_slow(self) -> bool:
        """Whether fetching a batch takes long enough to be worth a thread of its own."""

    @abstractmethod
    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        """(inputs, float32 [batch, ...]; labels, int64 [batch]) of the samples with these numbers."""


class TensorSamples(Samples):
    """Samples that are in memory as numbers of any type; a batch is (input - mean) / deviation in float32.

    Args:
        inputs: [samples, channels, height, width].
        labels: int64 [samples].
        mean, deviation: one number a channel, in the units of `inputs`.
    """

    def __init__(self, inputs: Tensor, labels: Tensor, mean: tuple[float, ...], deviation: tuple[float, ...]) -> None:
        self._inputs = inputs
        self._labels = labels
        self._mean = torch.tensor(mean).view(-1, 1, 1)
        self._deviation = torch.tensor(deviation).view(-1, 1, 1)

    def __len__(self) -> int:
        return len(self._labels)

    @property
    def is_slow(self) -> bool:
        """For images of 64 x 64 pixels and more; handing over a batch of small ones costs more than making it."""
        return self._inputs[0].numel() >= 64 * 64

    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        """See `Samples.batch`."""
        chosen = torch.from_numpy(numbers)
        return (self._inputs[chosen].float() - self._mean) / self._deviation, self._labels[chosen]


@dataclass(frozen=True, slots=True)
class Task:
    """What to learn: training and held-out samples of one input shape (channels, height, width)."""

    name: str
    input_shape: tuple[int, int, int]
    classes: int
    train: Samples
    test: Samples
    # The model that `gemps work` trains when none is named.
    default_model: str


def epoch_order(samples: int, seed: int, rank: int, epoch: int) -> NDArray[np.int64]:
    """The order in which worker `rank` sees the set in its pass number `epoch`: its own permutation of all of it.

    The paper's workers each go over the whole set (section 5); nothing is partitioned.
    """
    return np.random.default_rng([seed, rank, epoch]).permutation(samples)


def steps_per_epoch(samples: int, batch_size: int) -> int:
    """Whole batches in one pass. Samples left over come in another pass: its order differs."""
    return max(1, samples // batch_size)


def training_batches(samples: Samples, batch_size: int, seed: int, rank: int) -> Iterator[tuple[int, Batch]]:
    """(epoch, batch) without end. Where fetching is slow, another thread fetches the next batch meanwhile."""
    numbered = batch_numbers(len(samples), batch_size, seed, rank)
    if not samples.is_slow:
        for epoch, numbers in numbered:
            yield epoch, samples.batch(numbers)
    with ThreadPoolExecutor(1, thread_name_prefix="gemps-batches") as ahead:
        epoch, numbers = next(numbered)
        coming = ahead.submit(samples.batch, numbers)
        for next_epoch, numbers in numbered:
            batch = coming.result()
            coming = ahead.submit(samples.batch, numbers)
            yield epoch, batch
            epoch = next_epoch


def batch_numbers(samples: int, batch_size: int, seed: int, rank: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """(epoch, numbers of a batch's samples) without end: what worker `rank` trains on, in this order."""
    epoch = 0
    while True:
        order = epoch_order(samples, seed, rank, epoch)
        for step in range(steps_per_epoch(samples, batch_size)):
            yield epoch, order[step * batch_size : (step + 1) * batch_size]
        epoch += 1


def held_out_batches(samples: Samples, batch_size: int) -> Iterator[Batch]:
    """All samples once, in their own order."""
    numbers = np.arange(len(samples), dtype=np.int64)
    for start in range(0, len(samples), batch_size):
        yield samples.batch(numbers[start : start + batch_size])
