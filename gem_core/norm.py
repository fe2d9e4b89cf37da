"""The norm of a delta, before an update rule has applied it.

It is computed in a separate pass over the decoded vector. So the same values have the same norm over all transports,
with all wire types and all sizes of chunks. It is summed as the statistics of kernel.py are: strips in float32, and
in float64 where that is unreliable. Another processor may add in another order.

Of a vector with many strips only some are looked at, evenly spread: MOST_STRIPS to twice as many. That is enough to
see a delta that is many times too large. 4.2 million parameters take 0.01 to 0.08 ms, where a whole pass took 0.7 ms,
which was 5 % of such a commit at the server.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gem_core.compilation import READ_ONLY_VECTOR, block_function, driver
from gem_core.rules.kernel import squares
from gem_core.thresholds import STRIP

__all__ = ["MOST_STRIPS", "sampled_norm", "warm_up"]

# Strips of a vector of which all are looked at.
MOST_STRIPS = 64


def sampled_norm(values: NDArray[np.float32]) -> float:
    """The Euclidean norm of an aligned, contiguous float32 vector of finite values. Releases the GIL.

    Of a vector with more than MOST_STRIPS strips it is estimated from a sample, which is the same for all vectors of
    that size: a vector that is x times as large has x times the norm.

    Raises TypeError for other arrays.
    """
    return math.sqrt(_sum_of_squares(values))


def warm_up() -> None:
    """Load or compile the kernel."""
    sampled_norm(np.zeros(1, np.float32))


@block_function
def _quick_squares(values):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for i in range(values.size):
        total += values[i] * values[i]
    return total


@driver(READ_ONLY_VECTOR, parallel=False)
def _sum_of_squares(values):  # type: ignore[no-untyped-def]
    total, seen = np.float64(0), 0
    step = STRIP * max(1, values.size // (STRIP * MOST_STRIPS))
    for a in range(0, values.size, step):
        strip = values[a : a + STRIP]
        total += squares(_quick_squares(strip), strip)
        seen += strip.size
    return total * (values.size / max(1, seen))
