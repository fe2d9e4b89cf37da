"""The digits study's perceptron: one hidden layer."""

import math
from collections import OrderedDict

from torch import nn

from gem_worker.digits_file import HIDDEN


def mlp(input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Build the perceptron, which outputs logits."""
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            hidden=nn.Linear(math.prod(input_shape), HIDDEN),
            relu=nn.ReLU(),
            output=nn.Linear(HIDDEN, classes),
        )
    )
