"""DOWNPOUR: every delta is added as it is (Dean et al., 2012, "Large Scale Distributed Deep Networks", section 4.1).

    theta <- theta + delta
    s_w   <- theta

The baseline of the GEM paper's figures 1 and 6: it degrades and then fails as workers are added.
"""

from __future__ import annotations

import numpy as np

from gem_core.rules.interface import UpdateRule
from gem_core.rules.kernel import Kernel

__all__ = ["Downpour"]


def _update(theta, snapshot, delta):  # type: ignore[no-untyped-def]
    theta = theta + delta
    return theta, theta, delta, np.float32(1)


class Downpour(UpdateRule):
    """The rule `downpour`: theta += delta. It has no settings; `mean_pi` is 1 wherever something was applied."""

    name = "downpour"
    kernel = Kernel(_update)
