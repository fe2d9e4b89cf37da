"""Histograms in constant memory."""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

# Commits, about the number of workers.
STALENESS_BOUNDS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
# Seconds.
WAIT_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Histogram:
    """Counts of non-negative values.

    `bounds`: largest value of each bucket but the last. `total`: sum; `most`: maximum.
    """

    __slots__ = ("bounds", "counts", "most", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.most = 0.0

    def record(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
        if value > self.most:
            self.most = value

    def add_all(self, values: Sequence[float]) -> None:
        """Count many values."""
        array = np.asarray(values, np.float64)
        buckets = np.bincount(np.searchsorted(self.bounds, array), minlength=len(self.counts))
        self.counts = [count + more for count, more in zip(self.counts, buckets.tolist(), strict=True)]
        self.total += float(array.sum())
        self.most = max(self.most, float(array.max(initial=0.0)))

    def quantile(self, fraction: float) -> float:
        """A quantile, interpolated within buckets; 0 if empty."""
        wanted = fraction * sum(self.counts)
        lower = 0.0
        for count, bound in zip(self.counts, (*self.bounds, self.most), strict=True):
            upper = min(float(bound), self.most)
            if count and wanted <= count:
                return min(lower + (upper - lower) * wanted / count, upper)  # rounding
            wanted -= count
            lower = float(bound)
        return self.most
