"""The median of pi, over a model and over each of its tensors: an observer for figures 3, 9 and 10.

The rule `gem` reports the mean of pi and not its median, which no single pass over memory gives. So it is asked for pi
of every element beforehand.
"""

import math

import numpy as np
from numpy.typing import NDArray

from gem_core import Layout, UpdateRule, WorkerState
from gem_reproduction.outcomes import Medians

# Commits that are looked at: as many as a picture of a heat map can show.
SAMPLES = 100


class MedianOfPi:
    """Looks at every so many commits of a run.

    Args:
        rule: of the run; where it has no factor by element, nothing is seen.
        layout: of the model.
        commits: how many the run will have; 0: unknown, and every tenth is looked at.
        workers: of the run. The stride and their number have no common divisor: in a round-robin order each is seen.
    """

    def __init__(self, rule: UpdateRule, layout: Layout, commits: int, workers: int) -> None:
        self._rule = rule
        self._layout = layout
        self._stride = max(1, commits // SAMPLES) if commits else 10
        while math.gcd(self._stride, workers) > 1:
            self._stride += 1
        self._seen = 0
        self.found = Medians([tensor.name for tensor in layout.parameters] if rule.has_factors else [])

    def __call__(self, parameters: NDArray[np.float32], state: WorkerState, delta: NDArray[np.float32]) -> None:
        """A commit is about to be applied."""
        factors = None
        if self._seen % self._stride == 0:
            factors = self._rule.factors(parameters, state, delta, slice(None))
        if factors is not None:
            self.found.commits.append(self._seen)
            self.found.whole.append(_median(factors, delta))
            self.found.by_tensor.append(self._by_tensor(factors, delta))
        self._seen += 1

    def _by_tensor(self, factors: NDArray[np.float32], delta: NDArray[np.float32]) -> list[float]:
        ends = np.cumsum([tensor.elements for tensor in self._layout.parameters])[:-1]
        parts = zip(np.split(factors, ends), np.split(delta, ends), strict=True)
        return [_median(some, deltas) for some, deltas in parts]


def _median(factors: NDArray[np.float32], delta: NDArray[np.float32]) -> float:
    moving = factors[delta != 0]
    return float(np.median(moving)) if moving.size else math.nan
