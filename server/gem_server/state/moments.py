"""What the rule keeps of each worker, over restarts of the server (`--keep-moments`)."""

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gem_core import RuleError, UpdateRule

# Those of RuleState, float32[parameter_count].
Vectors: TypeAlias = tuple[NDArray[np.float32], ...]


class Moments:
    """Restored vectors by worker name, until their worker pulls. `count`: vectors of a worker; 0: none are kept."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._waiting: dict[str, Vectors] = {}

    def restore(self, kept: Mapping[str, Vectors]) -> None:
        """Set the vectors of workers that are expected back. Raises ValueError if they are another rule's."""
        if not self.count:
            return
        if any(len(vectors) != self.count for vectors in kept.values()):
            raise ValueError(f"there are not {self.count} vectors of each worker")
        self._waiting = dict(kept)

    def claim(self, worker: str) -> Vectors | None:
        """Return the vectors of a worker that is back, once."""
        return self._waiting.pop(worker, None)

    def give_up(self) -> None:
        """Drop what was not claimed."""
        self._waiting = {}

    def with_live(self, live: Mapping[str, Vectors]) -> dict[str, Vectors]:
        """Return all that a checkpoint needs, given the vectors of workers that have pulled."""
        return {**self._waiting, **live} if self.count else {}


def require_moments(rule: UpdateRule) -> None:
    """Raise RuleError if the rule keeps nothing of a worker that a restart could continue."""
    if rule.vectors_per_worker < 2 or not rule.keeps_run or not rule.sends_parameters:
        raise RuleError(
            f"rule {rule.name!r} has no vectors of a worker that could go on after a restart: leave out --keep-moments"
        )
