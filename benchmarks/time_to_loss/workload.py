"""What all contenders train: a model, its samples, and the held-out loss that ends a run."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
import torch
from gem_worker.model_sizes import DEFAULT_SIZES
from gem_worker.models.cnn import Cnn
from gem_worker.models.transformer import Transformer
from gem_worker.tasks import Task, create_task
from gem_worker.text_corpus import VOCABULARY, read_corpus
from torch import Tensor, nn
from torch.nn import functional

CLIP = 1.0
WEIGHT_DECAY = 0.1
Batch = tuple[Tensor, Tensor]


class Workload(Protocol):
    """`target`: held-out loss that ends a run; `batch`: of a worker's step."""

    @property
    def target(self) -> float:
        """Nats."""

    @property
    def batch(self) -> int:
        """Samples."""

    def model(self, seed: int) -> nn.Module:
        """The initial model."""

    def batches(self, seed: list[int]) -> Iterator[Batch]:
        """Batches without end."""

    def held_out_loss(self, model: nn.Module) -> float:
        """Loss on samples that no worker trains on."""


@dataclass(frozen=True)
class TextTransformer:
    """Next byte of `pydoc_data.topics`; 137 thousand parameters, windows of `context` bytes; nats a byte."""

    target: float = 1.9
    batch: int = 4
    context: int = 64
    held_out: int = 128

    def model(self, seed: int) -> nn.Module:
        """See Workload."""
        torch.manual_seed(seed)
        return Transformer(self.context, VOCABULARY, DEFAULT_SIZES)

    def batches(self, seed: list[int]) -> Iterator[Batch]:
        """Windows at random."""
        text = torch.tensor(read_corpus("", self.context).train)
        random = np.random.default_rng(seed)
        while True:
            starts = random.integers(0, len(text) - self.context - 1, self.batch)
            yield _windows(text, starts, self.context)

    @torch.no_grad()
    def held_out_loss(self, model: nn.Module) -> float:
        """Of the first windows."""
        text = torch.tensor(read_corpus("", self.context).held_out)
        inputs, labels = _windows(text, self.context * np.arange(self.held_out), self.context)
        return functional.cross_entropy(model(inputs), labels).item()


@dataclass(frozen=True)
class DigitsCnn:
    """scikit-learn's digits, 8 x 8 pixels; the paper's CNN."""

    target: float = 0.15
    batch: int = 8

    def model(self, seed: int) -> nn.Module:
        """See Workload."""
        torch.manual_seed(seed)
        return Cnn(_digits().input_shape, _digits().classes)

    def batches(self, seed: list[int]) -> Iterator[Batch]:
        """Images at random."""
        samples, random = _digits().train, np.random.default_rng(seed)
        while True:
            yield samples.batch(random.integers(0, len(samples), self.batch))

    @torch.no_grad()
    def held_out_loss(self, model: nn.Module) -> float:
        """Of all held-out images."""
        samples = _digits().test
        inputs, labels = samples.batch(samples.numbers())
        return functional.cross_entropy(model.eval()(inputs), labels).item()


WORKLOADS: dict[str, Workload] = {"text": TextTransformer(), "digits": DigitsCnn()}


def compute_gradient(model: nn.Module, batch: Batch) -> Tensor:
    """Leave a clipped gradient in the parameters; return the loss."""
    inputs, labels = batch
    loss = functional.cross_entropy(model(inputs), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    return loss


def adamw(model: nn.Module, rate: float) -> torch.optim.AdamW:
    """The optimizer of all contenders whose workers have one."""
    return torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=WEIGHT_DECAY)


@cache
def _digits() -> Task:
    return create_task("digits")


def _windows(text: Tensor, starts: "np.typing.NDArray[np.int64]", context: int) -> Batch:
    found = text[torch.from_numpy(starts)[:, None] + torch.arange(context + 1)].long()
    return found[:, :-1], found[:, 1:]
