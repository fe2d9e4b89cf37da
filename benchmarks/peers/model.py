"""What every worker holds, whoever its server is: a flat gradient and flat parameters, float32, in PyTorch's memory."""

import torch

from peers.interface import ETA


class Model:
    """The flat tensors of one worker.

    gradient: as a backward pass would have left it; the same in each step, since nothing is computed.
    parameters: where fresh parameters have to be at the end of a step.
    """

    def __init__(self, parameters: int, rank: int) -> None:
        torch.set_num_threads(1)  # workers share the machine, as they would a host
        generator = torch.Generator().manual_seed(rank)
        self.gradient = torch.empty(parameters).normal_(std=1e-4, generator=generator)
        self.parameters = torch.zeros(parameters)

    def scale_into(self, delta: torch.Tensor) -> None:
        """`delta` <- -eta * gradient."""
        torch.mul(self.gradient, -ETA, out=delta)
