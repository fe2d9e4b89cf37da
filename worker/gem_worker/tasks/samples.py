"""Labelled samples and their order."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gem_worker.model_sizes import DEFAULT_SIZES, TransformerSizes

Batch = tuple[Tensor, Tensor]


class Samples(ABC):
    """Labelled samples, fetched by number."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of samples."""

    @property
    @abstractmethod
    def is_slow(self) -> bool:
        """Whether to prefetch batches on a thread."""

    def numbers(self) -> NDArray[np.int64]:
        """All numbers, in order."""
        return np.arange(len(self), dtype=np.int64)

    def shuffled(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """Epoch's numbers in random order."""
        return generator.permutation(len(self))

    @abstractmethod
    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        """Inputs ([batch, ...]) and labels (int64 [batch], or [batch, positions])."""


class TensorSamples(Samples):
    """Samples in memory; a batch is (input - mean) / deviation in float32.

    `inputs`: [samples, channels, height, width]; `labels`: int64 [samples]; `mean`, `deviation`: per channel.
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
        """Whether prefetching pays: from 4096 numbers per sample."""
        return self._inputs[0].numel() >= 64 * 64

    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        """See `Samples.batch`."""
        chosen = torch.from_numpy(numbers)
        return (self._inputs[chosen].float() - self._mean) / self._deviation, self._labels[chosen]


@dataclass(frozen=True, slots=True)
class Task:
    """Training and held-out samples.

    Attributes:
        input_shape: of an image (channels, height, width), or of a text (positions,).
        classes: of each label.
        sizes: of the model transformer.
        predictions_per_character: labels for each character of a held-out text; None: no text.
    """

    name: str
    input_shape: tuple[int, ...]
    classes: int
    train: Samples
    test: Samples
    default_model: str
    sizes: TransformerSizes = DEFAULT_SIZES
    predictions_per_character: float | None = None

    def bits_per_character(self, loss: float) -> float | None:
        """Convert the held-out loss (nats a prediction); None: no text."""
        return None if self.predictions_per_character is None else loss * self.predictions_per_character / math.log(2)


def epoch_order(samples: Samples, seed: int, rank: int, epoch: int) -> NDArray[np.int64]:
    """Worker's order of the whole set (paper, section 5)."""
    return samples.shuffled(np.random.default_rng([seed, rank, epoch]))


def steps_per_epoch(samples: int, batch_size: int) -> int:
    """The whole batches in an epoch, at least 1."""
    return max(1, samples // batch_size)


def training_batches(samples: Samples, batch_size: int, seed: int, rank: int) -> Iterator[tuple[int, Batch]]:
    """Yield (epoch, batch) endlessly; prefetches if `samples.is_slow`."""
    numbered = batch_numbers(samples, batch_size, seed, rank)
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


def batch_numbers(samples: Samples, batch_size: int, seed: int, rank: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield (epoch, a batch's numbers) endlessly."""
    epoch = 0
    while True:
        order = epoch_order(samples, seed, rank, epoch)
        for step in range(steps_per_epoch(len(samples), batch_size)):
            yield epoch, order[step * batch_size : (step + 1) * batch_size]
        epoch += 1


def held_out_batches(samples: Samples, batch_size: int) -> Iterator[Batch]:
    """Yield all samples once, in order."""
    numbers = samples.numbers()
    for start in range(0, len(numbers), batch_size):
        yield samples.batch(numbers[start : start + batch_size])
