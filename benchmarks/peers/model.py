"""What every worker holds, whoever its server is: a flat gradient and flat parameters, float32, in PyTorch's memory."""

from typing import ClassVar

import torch

from benchmarks.peers.interface import ETA

PARTS = 8


class Model:
    """The flat tensors of one worker.

    gradient: as a backward pass would have left it; the same in each step, since nothing is computed.
    parameters: where fresh parameters have to be at the end of a step.
    """

    newest: ClassVar["Model | None"] = None  # this process's, for `check_fresh`

    def __init__(self, parameters: int, rank: int) -> None:
        torch.set_num_threads(1)  # workers share the machine, as they would a host
        generator = torch.Generator().manual_seed(rank)
        self.gradient = torch.empty(parameters).normal_(std=1e-4, generator=generator)
        self.parameters = torch.zeros(parameters)
        Model.newest = self

    def scale_into(self, delta: torch.Tensor) -> None:
        """`delta` <- -eta * gradient."""
        torch.mul(self.gradient, -ETA, out=delta)


def check_fresh() -> None:
    """After a worker's steps: raise RuntimeError unless the server's updates have come to all of its parameters."""
    assert Model.newest is not None
    parts = Model.newest.parameters.tensor_split(min(PARTS, len(Model.newest.parameters)))
    unchanged = sum(1 for part in parts if not part.any())
    if unchanged:
        raise RuntimeError(
            f"the parameters in the worker's memory are not fresh: {unchanged} of {len(parts)} parts are old"
        )
