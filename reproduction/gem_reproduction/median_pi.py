"""Median of pi, over a model and its tensors."""

import math

import numpy as np
from numpy.typing import NDArray

from gem_core import Layout, RuleState, UpdateRule
from gem_reproduction.outcomes import Medians

# Sampled commits.
SAMPLES = 100


class MedianOfPi:
    """Samples commits of a run.

    `commits`: expected number; 0: unknown. The stride is coprime to `workers`.
    """

    def __init__(self, rule: UpdateRule, layout: Layout, commits: int, workers: int) -> None:
        self._rule = rule
        self._layout = layout
        self._stride = max(1, commits // SAMPLES) if commits else 10
        while math.gcd(self._stride, workers) > 1:
            self._stride += 1
        self._seen = 0
        self.found = Medians([tensor.name for tensor in layout.parameters] if rule.has_factors else [])

    def __call__(self, parameters: NDArray[np.float32], state: RuleState, delta: NDArray[np.float32]) -> None:
        """Observe a commit."""
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
