"""Gap-Aware: scale each element of a delta down by the movement of theta since its computation.

Barkai, Hakimi and Schuster, 2020, arXiv 1909.10802, without its momentum and weight decay, as in the authors' code
(FTPipe, `sgd_gap_aware.py`), but in deltas; in this order, at commit t:

    q     <- G * q + (1 - G) * delta^2
    step  =  sqrt(q / (1 - G^t)) + epsilon
    theta <- theta + delta / (1 + |theta - s_w| / step)
    s_w   <- theta

q is per run. epsilon is eta times the authors' 1e-8 (default: eta 0.05).
"""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from gem_core.rules.interface import Setting, UpdateRule
from gem_core.rules.kernel import Kernel

__all__ = ["GapAware"]


def _gap_aware_update(theta, snapshot, mean_square, delta, keep, fresh, bias, epsilon):  # type: ignore[no-untyped-def]
    one = np.float32(1)
    mean_square = keep * mean_square + fresh * (delta * delta)
    penalty = one + abs(theta - snapshot) / (np.sqrt(mean_square / bias) + epsilon)
    update = delta / penalty
    theta = theta + update
    return theta, theta, mean_square, update, one / penalty


class GapAware(UpdateRule):
    """Rule `gap-aware`; `mean_pi` is the mean of 1 / (1 + gap)."""

    name = "gap-aware"
    kernel = Kernel(_gap_aware_update)
    vectors_per_run = 1
    first_scalars = MappingProxyType({"commits": 0})
    known_settings = (
        Setting("decay", 0.999, 0.0, 0.999999, "G: how long the average step remembers"),
        Setting("epsilon", 5e-10, 1e-30, 1.0, "added to the average step: eta times 1e-8"),
    )

    def _scalars(self, staleness: int, eta: float) -> tuple[np.float32, ...]:
        self.scalars_of_run["commits"] += 1
        decay = self.settings["decay"]
        values = (decay, 1 - decay, 1 - decay ** self.scalars_of_run["commits"], self.settings["epsilon"])
        return tuple(np.float32(value) for value in values)
