"""What all contenders train: a model, its samples, and the held-out loss that ends a run."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from gem_worker.model_sizes import DEFAULT_SIZES
from gem_worker.models.cnn import Cnn
from gem_worker.models.transformer import Transformer
from gem_worker.tasks import Task, create_task
from gem_worker.text_corpus import VOCABULARY, TextCorpus, read_corpus
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

Batch = tuple[Tensor, Tensor]
# Bytes of text in a sample; norm of a clipped gradient; AdamW's and Muon's weight decay.
CONTEXT, CLIP, DECAY = 64, 1.0, 0.1


@dataclass(frozen=True)
class Workload(ABC):
    """`target`: held-out loss that ends a run, in nats; `batch`: samples of a worker's step.

    evaluation_seconds: between two evaluations of the loss.
    """

    target: float
    batch: int
    evaluation_seconds: float

    @abstractmethod
    def model(self, seed: int) -> nn.Module:
        """The initial model. Raises TaskError if the workload's data set is missing."""

    @abstractmethod
    def batches(self, seed: list[int]) -> Iterator[Batch]:
        """Batches without end."""

    @abstractmethod
    def held_out_loss(self, model: nn.Module) -> float:
        """Loss on samples that no worker trains on."""


@dataclass(frozen=True)
class TextTransformer(Workload):
    """Windows of gemps' own text, and a transformer of 137 thousand parameters."""

    held_out: int = 128

    @override
    def model(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Transformer(CONTEXT, VOCABULARY, DEFAULT_SIZES)

    @override
    def batches(self, seed: list[int]) -> Iterator[Batch]:
        text, random = _corpus().train, np.random.default_rng(seed)
        while True:
            yield _windows(text, random.integers(0, len(text) - CONTEXT - 1, self.batch))

    @override
    @torch.no_grad()
    def held_out_loss(self, model: nn.Module) -> float:
        inputs, labels = _windows(_corpus().held_out, CONTEXT * np.arange(self.held_out))
        return functional.cross_entropy(model(inputs), labels).item()


@dataclass(frozen=True)
class FashionMnistCnn(Workload):
    """Fashion-MNIST and the paper's CNN, which is made for 28 x 28 pixels: 164 thousand parameters.

    `held_out`: images of the loss, the first ones of the held-out set, whose order is random.
    """

    held_out: int = 2000

    @override
    def model(self, seed: int) -> nn.Module:
        task = _fashion_mnist()
        torch.manual_seed(seed)
        return Cnn(task.input_shape, task.classes)

    @override
    def batches(self, seed: list[int]) -> Iterator[Batch]:
        samples, random = _fashion_mnist().train, np.random.default_rng(seed)
        while True:
            yield samples.batch(random.integers(0, len(samples), self.batch))

    @override
    @torch.no_grad()
    def held_out_loss(self, model: nn.Module) -> float:
        inputs, labels = _fashion_mnist().test.batch(np.arange(self.held_out))
        return functional.cross_entropy(model.eval()(inputs), labels).item()


WORKLOADS: dict[str, Workload] = {
    "text": TextTransformer(target=2.1, batch=4, evaluation_seconds=1.0),
    "fashion-mnist": FashionMnistCnn(target=0.55, batch=8, evaluation_seconds=0.5),
}


def compute_gradient(model: nn.Module, batch: Batch) -> Tensor:
    """Leave a clipped gradient in the parameters; return the loss."""
    inputs, labels = batch
    loss = functional.cross_entropy(model(inputs), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    return loss


def adamw(model: nn.Module, rate: float) -> torch.optim.AdamW:
    """The optimizer of all contenders whose workers have one."""
    return torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=DECAY)


class Muon:
    """PyTorch's Muon for a transformer's matrices, and AdamW for the rest, with one rate, as its documentation says."""

    def __init__(self, model: nn.Module, rate: float) -> None:
        matrices = [one for name, one in model.named_parameters() if name.startswith("layers.") and one.ndim == 2]
        others = [one for one in model.parameters() if all(one is not matrix for matrix in matrices)]
        muon = torch.optim.Muon(matrices, lr=rate, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw")
        self._parts = muon, torch.optim.AdamW(others, lr=rate, weight_decay=DECAY)

    def zero_grad(self) -> None:
        """Of all parameters."""
        for part in self._parts:
            part.zero_grad()

    def step(self) -> None:
        """Move all parameters."""
        for part in self._parts:
            part.step()

    def state_dict(self) -> dict[str, Any]:
        """Of Muon: even numbers; of AdamW: odd ones."""
        states = [part.state_dict()["state"] for part in self._parts]
        return {"state": {2 * number + at: one for at, state in enumerate(states) for number, one in state.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Invert `state_dict`."""
        for at, part in enumerate(self._parts):
            own = {number // 2: one for number, one in state["state"].items() if number % 2 == at}
            part.load_state_dict({**part.state_dict(), "state": own})


def _windows(text: NDArray[np.uint8], starts: NDArray[np.int64]) -> Batch:
    """Inputs and targets, int64 [starts, CONTEXT]."""
    found = torch.from_numpy(text[starts[:, None] + np.arange(CONTEXT + 1)].astype(np.int64))
    return found[:, :-1], found[:, 1:]


@cache
def _fashion_mnist() -> Task:
    return create_task("fashion-mnist")


@cache
def _corpus() -> TextCorpus:
    return read_corpus("", CONTEXT)
