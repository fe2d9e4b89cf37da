"""The digits study's perceptron: one hidden layer."""

import math
from collections import OrderedDict

from torch import nn

_HIDDEN = 64


def mlp(input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """MLP that outputs logits."""
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            hidden=nn.Linear(math.prod(input_shape), _HIDDEN),
            relu=nn.ReLU(),
            output=nn.Linear(_HIDDEN, classes),
        )
    )
