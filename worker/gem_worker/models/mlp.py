"""The multi-layer perceptron of the study on digits: one hidden layer of 64 (64-64-10 there)."""

import math
from collections import OrderedDict

from torch import nn

_HIDDEN = 64


def mlp(input_shape: tuple[int, int, int], classes: int) -> nn.Sequential:
    """Logits from inputs of any shape."""
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            hidden=nn.Linear(math.prod(input_shape), _HIDDEN),
            relu=nn.ReLU(),
            output=nn.Linear(_HIDDEN, classes),
        )
    )
