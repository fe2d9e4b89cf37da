"""The norm of a delta, before an update rule has applied it.

A pass of its own over the decoded vector, whatever wire type brought it, and wherever its chunks were cut: so the same
values have the same norm over all transports. It is summed as the statistics of kernel.py are: strips in float32, and
in float64 where that is unreliable. Another processor may add in another order. 2bdd59b7: 1 us of 2 048 parameters and
0.7 ms of 4.2 million, as much as their checksum; such a commit takes 37 ms in all.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gem_core.compilation import READ_ONLY_VECTOR, block_function, driver
from gem_core.rules.kernel import squares
from gem_core.thresholds import STRIP

__all__ = ["norm", "warm_up"]


def norm(values: NDArray[np.float32]) -> float:
    """The Euclidean norm of an aligned, contiguous float32 vector of finite values. Releases the GIL.

    Raises TypeError for other arrays.
    """
    return math.sqrt(_sum_of_squares(values))


def warm_up() -> None:
    """Load or compile the kernel."""
    norm(np.zeros(1, np.float32))


@block_function
def _quick_squares(values):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for i in range(values.size):
        total += values[i] * values[i]
    return total


@driver(READ_ONLY_VECTOR, parallel=False)
def _sum_of_squares(values):  # type: ignore[no-untyped-def]
    total = np.float64(0)
    for a in range(0, values.size, STRIP):
        strip = values[a : a + STRIP]
        total += squares(_quick_squares(strip), strip)
    return total
