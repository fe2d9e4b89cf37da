"""Workers' rule vectors over restarts (`--keep-moments`)."""

from collections.abc import Container, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gem_core import RuleError, UpdateRule

Vectors: TypeAlias = tuple[NDArray[np.float32], ...]


class Moments:
    """Restored vectors until their worker pulls. `count`: of each."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._waiting: dict[str, Vectors] = {}

    def restore(self, kept: Mapping[str, Vectors]) -> None:
        """Set vectors by worker name. Raises ValueError."""
        if not self.count:
            return
        if any(len(vectors) != self.count for vectors in kept.values()):
            raise ValueError(f"there are not {self.count} vectors of each worker")
        self._waiting = dict(kept)

    def waiting_bytes(self, but: Container[str]) -> int:
        """Bytes of other workers."""
        waiting = (vectors for worker, vectors in self._waiting.items() if worker not in but)
        return sum(vector.nbytes for vectors in waiting for vector in vectors)

    def claim(self, worker: str) -> Vectors | None:
        """Remove and return a worker's."""
        return self._waiting.pop(worker, None)

    def keep_only(self, workers: Container[str]) -> None:
        """Drop those of other workers."""
        self._waiting = {worker: vectors for worker, vectors in self._waiting.items() if worker in workers}

    def with_live(self, live: Mapping[str, Vectors]) -> dict[str, Vectors]:
        """These and live workers'."""
        return {**self._waiting, **live} if self.count else {}


def require_moments(rule: UpdateRule) -> None:
    """Raise RuleError if a restart could continue nothing."""
    if rule.vectors_per_worker < 2 or not rule.keeps_run or not rule.sends_parameters:
        raise RuleError(
            f"rule {rule.name!r} has no vectors of a worker to keep over a restart: leave out --keep-moments"
        )
