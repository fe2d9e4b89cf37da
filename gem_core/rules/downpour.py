"""DOWNPOUR: add deltas unchanged.

    theta <- theta + delta
    s_w   <- theta

Dean et al., 2012, "Large Scale Distributed Deep Networks", section 4.1.
"""

from __future__ import annotations

import numpy as np

from gem_core.rule_settings import WEIGHT_DECAY
from gem_core.rules.decay import DecayingRule
from gem_core.rules.kernel import Kernel

__all__ = ["Downpour"]


def _downpour_update(theta, snapshot, delta):  # type: ignore[no-untyped-def]
    theta = theta + delta
    return theta, theta, delta, np.float32(1)


class Downpour(DecayingRule):
    """Rule `downpour`. `mean_pi` is 1, or 0 if delta is all zero."""

    name = "downpour"
    kernel = Kernel(_downpour_update)
    known_settings = (WEIGHT_DECAY,)
