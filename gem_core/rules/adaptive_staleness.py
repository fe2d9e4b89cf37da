"""Adaptive staleness: scale a delta down by its staleness (GEM paper, figure 1c).

    theta <- theta + delta / (tau + 1)
    s_w   <- theta

tau: commits since the snapshot.
"""

from __future__ import annotations

import numpy as np

from gem_core.rule_settings import WEIGHT_DECAY
from gem_core.rules.decay import DecayingRule
from gem_core.rules.kernel import Kernel

__all__ = ["AdaptiveStaleness"]


def _adaptive_staleness_update(theta, snapshot, delta, divisor):  # type: ignore[no-untyped-def]
    update = delta / divisor
    theta = theta + update
    return theta, theta, update, np.float32(1) / divisor


class AdaptiveStaleness(DecayingRule):
    """Rule `adaptive-staleness`. `mean_pi` is 1 / (tau + 1)."""

    name = "adaptive-staleness"
    kernel = Kernel(_adaptive_staleness_update)
    known_settings = (WEIGHT_DECAY,)

    def _scalars(self, staleness: int, eta: float) -> tuple[np.float32, ...]:
        return (np.float32(staleness + 1),)
