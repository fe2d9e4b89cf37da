"""The median of figures that others claim."""

import math
from collections.abc import Iterable


def median(values: Iterable[float]) -> float | None:
    """The median: the middle value, or the mean of the middle two; None without values.

    Unlike a mean, the median of three values or more cannot be moved beyond the others' values by one of them. Of two
    values it is their mean, and of one that value itself. NaN counts as larger than every number, since
    `statistics.median` has no defined result with it. So the result is NaN only if the middle is NaN.
    """
    ordered = sorted(values, key=lambda value: (math.isnan(value), value))
    if not ordered:
        return None
    lower, upper = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return lower if lower == upper else lower / 2 + upper / 2  # the sum of two large values would overflow
