"""Models of every kind that a worker must train: each is small, and takes a batch of 8 x 8 images."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class TiedWeights(nn.Module):
    """Two layers that share one weight, as language models tie input and output embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 64)
        self.second.weight = self.first.weight
        self.output = nn.Linear(64, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(torch.relu(self.second(torch.relu(self.first(inputs.flatten(1))))))


class UnusedParameter(nn.Module):
    """A layer that forward does not use, so that its gradient stays None."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(3, 3)
        self.output = nn.Linear(64, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(inputs.flatten(1))


class OddBuffers(nn.Module):
    """Buffers of several types, one of them non-persistent, one replaced by a new tensor in every forward pass."""

    local: Tensor
    counter: Tensor
    flags: Tensor
    average: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(64, 10)
        self.register_buffer("flags", torch.tensor([True, False, True]))
        self.register_buffer("counter", torch.zeros((), dtype=torch.int64))
        self.register_buffer("average", torch.zeros(3, dtype=torch.float64))
        self.register_buffer("local", torch.full((2,), float("-inf")), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.counter += 1
            self.average = self.average + 0.25
        return self.output(inputs.flatten(1))


class Recurrent(nn.Module):
    """An LSTM over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, batch_first=True)
        self.output = nn.Linear(16, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        self.lstm.flatten_parameters()
        hidden, _ = self.lstm(inputs.reshape(len(inputs), 8, 8))
        return self.output(hidden[:, -1])


class SparseEmbedding(nn.Module):
    """Brightness classes embedded; the gradient of the embedding is a sparse tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(17, 4, sparse=True)
        self.output = nn.Linear(256, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(self.embedding((inputs.flatten(1) * 16).long().clamp(0, 16)).flatten(1))


class InOwnType(nn.Module):
    """A perceptron in another floating-point type than its inputs."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.layers = perceptron().to(dtype)
        self.dtype = dtype

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs.to(self.dtype)).float()


class MixedTypes(nn.Module):
    """Layers of three types, in an order that the layout does not keep."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 32, dtype=torch.float64)
        self.second = nn.Linear(32, 16, dtype=torch.bfloat16)
        self.third = nn.Linear(16, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.relu(self.first(inputs.flatten(1).double())).bfloat16()
        return self.third(torch.relu(self.second(hidden)).float())


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def batch_norm() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))


def frozen_layer() -> nn.Sequential:
    model = perceptron()
    model[1].requires_grad_(False)
    return model


def channels_last() -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 8, 3, padding=1), nn.Flatten(), nn.Linear(512, 10)
    )
    return model.to(memory_format=torch.channels_last)


def parametrized() -> nn.Module:
    model = perceptron()
    nn.utils.parametrizations.weight_norm(model[1])
    return model


ZOO: dict[str, Callable[[], nn.Module]] = {
    "perceptron": perceptron,
    "batch-norm": batch_norm,
    "tied-weights": TiedWeights,
    "frozen-layer": frozen_layer,
    "unused-parameter": UnusedParameter,
    "odd-buffers": OddBuffers,
    "recurrent": Recurrent,
    "sparse-embedding": SparseEmbedding,
    "float64": lambda: InOwnType(torch.float64),
    "bfloat16": lambda: InOwnType(torch.bfloat16),
    "float16": lambda: InOwnType(torch.float16),
    "mixed-types": MixedTypes,
    "channels-last": channels_last,
    "parametrized": parametrized,
}


def make(kind: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return ZOO[kind]()


def a_batch(size: int = 16, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(size, 1, 8, 8, generator=generator), torch.randint(0, 10, (size,), generator=generator)
