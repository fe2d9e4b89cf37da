"""The vectors that a rule keeps of a whole run, made when the first worker comes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gem_core.aligned import aligned_zeros
from gem_core.errors import SizeMismatchError

__all__ = ["RunVectors"]


class RunVectors:
    """`count` float32 vectors of the model's size, 0 at first. Not thread-safe, as the rule that has them."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._vectors: tuple[NDArray[np.float32], ...] = ()

    def of(self, parameters: NDArray[np.float32]) -> tuple[NDArray[np.float32], ...]:
        """Those that belong to `parameters` (float32, shape (n,)); the first call makes them.

        Raises:
            SizeMismatchError: an earlier call had another n.
        """
        if not self._vectors:
            self._vectors = tuple(aligned_zeros(parameters.size) for _ in range(self._count))
        if self._vectors[0].shape != parameters.shape:
            raise SizeMismatchError(
                f"parameters of shape {parameters.shape}, and this rule keeps vectors of a run with "
                f"{self._vectors[0].shape}: make a rule of its own for each run"
            )
        return self._vectors
