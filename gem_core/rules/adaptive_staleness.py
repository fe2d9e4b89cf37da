"""Adaptive staleness: a delta counts the less the older the parameters it was computed at (GEM paper, figure 1c).

    theta <- theta + delta / (tau + 1)
    s_w   <- theta

tau is the number of commits applied since the worker's snapshot. Stable, and the slower the more workers.
"""

from __future__ import annotations

import numpy as np

from gem_core.rules.interface import UpdateRule
from gem_core.rules.kernel import Kernel

__all__ = ["AdaptiveStaleness"]


def _update(theta, snapshot, delta, divisor):  # type: ignore[no-untyped-def]
    update = delta / divisor
    theta = theta + update
    return theta, theta, update, np.float32(1) / divisor


class AdaptiveStaleness(UpdateRule):
    """The rule `adaptive-staleness`: theta += delta / (tau + 1). It has no settings; `mean_pi` is 1 / (tau + 1)."""

    name = "adaptive-staleness"
    kernel = Kernel(_update)

    def _scalars(self, staleness: int) -> tuple[np.float32, ...]:
        return (np.float32(staleness + 1),)
