"""GEM on gradients that are divided by their root mean square, as in RMSprop and, without momentum, Adam.

Kingma and Ba, 2015, "Adam", arXiv 1412.6980, for the bias correction; elementwise, in float32, in this order, with eta
as in the delta:

    g     =  delta * (1 / eta)          limited to +-1e18, so that its square is finite
    v     <- beta2 * v + (1 - beta2) * g^2
    step  =  eta * clamp(g / (sqrt(v * (1 / V)) + epsilon), -cap, cap)
    theta, s_w, m_w <- as rule `gem`, with step for delta

V is the weight of all squares in v, V <- beta2 * V + (1 - beta2) from 0. v and V are of the run. If eta is 0 (below
1e-37), nothing is learned: v and V stay. Statistics are those of `gem` for the step, but `delta_norm`, and which
elements count, are of the delta.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from gem_core.rule_settings import GEM_SETTINGS, PRECONDITION_SETTINGS
from gem_core.rules.gem import Gem, gem_element
from gem_core.rules.kernel import Kernel

__all__ = ["LEAST_ETA", "GemRms"]

# 1 / eta is finite in float32.
LEAST_ETA = 1e-37


def _gem_rms_update(  # type: ignore[no-untyped-def]
    theta, snapshot, moment, square, delta,
    mu, kappa, pi_min, pi_max, epsilon, inverse, eta, keep, fresh, correction, floor, cap,
):  # fmt: skip
    gradient = delta * inverse
    gradient = gradient if gradient < np.float32(1e18) else np.float32(1e18)
    gradient = gradient if gradient > np.float32(-1e18) else np.float32(-1e18)
    square = keep * square + fresh * (gradient * gradient)
    step = gradient / (np.sqrt(square * correction) + floor)
    step = cap if step > cap else step
    step = -cap if step < -cap else step
    theta, sent, moment, update, pi = gem_element(
        theta, snapshot, moment, eta * step, mu, kappa, pi_min, pi_max, epsilon
    )
    return theta, sent, moment, square, update, pi


class GemRms(Gem):
    """Rule `gem` with precondition `rms`. The run's vector is v."""

    kernel = Kernel(_gem_rms_update, proxy="moment")
    vectors_per_run = 1
    first_scalars = MappingProxyType({"square_weight": 0.0})
    precondition = "rms"
    needs_eta = True
    has_factors = False
    known_settings = (*GEM_SETTINGS, *PRECONDITION_SETTINGS)

    def __init__(self, settings: Mapping[str, float]) -> None:
        super().__init__(settings)
        self._bounds = tuple(np.float32(self.settings[f"precondition_{name}"]) for name in ("epsilon", "cap"))

    def _scalars(self, staleness: int, eta: float) -> tuple[np.float32, ...]:
        moves = eta >= LEAST_ETA
        values = (1 / eta, eta) if moves else (0.0, 0.0)
        return (
            *self._constants,
            *map(np.float32, (*values, *self._square_factors(moves))),
            *self._bounds,
        )

    def _square_factors(self, moves: bool) -> tuple[float, float, float]:
        """Factors of v, of g^2, and 1 / V after the commit."""
        beta2, run = self.settings["beta2"], self.scalars_of_run
        keep, fresh = (beta2, 1 - beta2) if moves else (1.0, 0.0)
        run["square_weight"] = keep * run["square_weight"] + fresh
        return keep, fresh, 1 / (run["square_weight"] or 1.0)
