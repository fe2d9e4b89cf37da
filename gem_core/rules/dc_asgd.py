"""DC-ASGD-a: correct a stale gradient by the movement of theta since its computation.

Zheng et al., 2017, arXiv 1609.08326, as in the authors' code, but in deltas; in this order:

    q_w    <- m * q_w + (1 - m) * delta^2
    factor =  1 - lambda * delta / sqrt(q_w + epsilon) * (theta - s_w)
    theta  <- theta + factor * delta
    s_w    <- theta

q_w is eta^2 times the mean square of gradients; eta cancels elsewhere: same lambda, epsilon = eta^2 * 1e-7 (default:
eta 0.05).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gem_core.rules.interface import Setting, UpdateRule
from gem_core.rules.kernel import Kernel

__all__ = ["DcAsgd"]


def _dc_asgd_update(theta, snapshot, mean_square, delta, strength, keep, fresh, epsilon):  # type: ignore[no-untyped-def]
    mean_square = keep * mean_square + fresh * (delta * delta)
    # An overflowing square must give no correction instead of NaN.
    factor = np.float32(1) - strength * (delta / np.sqrt(mean_square + epsilon)) * (theta - snapshot)
    update = factor * delta
    theta = theta + update
    return theta, theta, mean_square, update, factor


class DcAsgd(UpdateRule):
    """Rule `dc-asgd`; `mean_pi` is the mean factor. The worker's vector is q_w."""

    name = "dc-asgd"
    kernel = Kernel(_dc_asgd_update)
    vectors_per_worker = 2
    known_settings = (
        Setting("strength", 2.0, 0.0, 1e6, "lambda: how much of the correction is applied; 0 is downpour"),
        Setting("decay", 0.95, 0.0, 0.9999, "m: how long the mean square of a worker's deltas remembers"),
        Setting("epsilon", 2.5e-10, 1e-30, 1.0, "added to the mean square of deltas: eta^2 times the paper's 1e-7"),
    )

    def __init__(self, settings: Mapping[str, float]) -> None:
        super().__init__(settings)
        strength, decay, epsilon = (self.settings[name] for name in ("strength", "decay", "epsilon"))
        self._constants = tuple(np.float32(value) for value in (strength, decay, 1 - decay, epsilon))

    def _scalars(self, staleness: int, eta: float) -> tuple[np.float32, ...]:
        return self._constants
