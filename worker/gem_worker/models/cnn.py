"""CNN of Hermans and Louppe (2018), appendix A."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from gem_worker.errors import TaskError

# Two unpadded 5x5 convolutions, each halved: (side - 4) / 2 - 4 >= 2.
_SMALLEST_FOR_5X5 = 16


class Cnn(nn.Module):
    """The paper's network for 28 x 28; padded 3x3 convolutions below 16 x 16. Returns logits."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = input_shape
        if min(height, width) < 4:
            raise TaskError(f"cnn needs images of at least 4 x 4 pixels, these are {height} x {width}; use --model mlp")
        kernel, padding = (5, 0) if min(height, width) >= _SMALLEST_FOR_5X5 else (3, 1)
        self.conv1 = nn.Conv2d(channels, 10, kernel, padding=padding)
        self.conv2 = nn.Conv2d(10, 20, kernel, padding=padding)
        self.dropout = nn.Dropout2d()
        with torch.no_grad():
            features = self._features(torch.zeros(1, *input_shape)).shape[1]
        self.linear1 = nn.Linear(features, 300)
        self.linear2 = nn.Linear(300, 200)
        self.output = nn.Linear(200, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [batch, channels, height, width] to logits [batch, classes]."""
        hidden = functional.relu(self.linear1(self._features(inputs)))
        logits: Tensor = self.output(functional.relu(self.linear2(hidden)))
        return logits

    def _features(self, inputs: Tensor) -> Tensor:
        hidden = functional.relu(functional.max_pool2d(self.conv1(inputs), 2))
        hidden = functional.relu(functional.max_pool2d(self.dropout(self.conv2(hidden)), 2))
        return hidden.flatten(1)
