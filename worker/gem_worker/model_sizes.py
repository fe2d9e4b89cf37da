"""Sizes of the transformer. Imports no torch."""

from dataclasses import dataclass

from gem_worker.errors import TaskError


@dataclass(frozen=True, slots=True)
class TransformerSizes:
    """Blocks, features a position, attention heads a block. Raises TaskError if `heads` do not divide `width`."""

    layers: int = 2
    width: int = 64
    heads: int = 4

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise TaskError(f"--width {self.width} is not divisible by --heads {self.heads}; change one of them")


# 137 thousand parameters with the task text.
DEFAULT_SIZES = TransformerSizes()
