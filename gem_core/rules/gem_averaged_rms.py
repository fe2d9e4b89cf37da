"""GEM on gradients divided by the root mean square of the averaged gradient.

As gem_rms.py, but:

    g     =  delta * (1 / eta)          limited to +-1e18
    a     <- (1 - 1/N) * a + (1/N) * g
    v     <- beta2 * v + (1 - beta2) * (a * (1 / A))^2
    step  =  eta * clamp(N^(-1/2) * (g / (sqrt(v * (1 / V)) + epsilon)), -cap, cap)
    theta, s_w, m_w <- as rule `gem`, with step for delta

N = 1 + mean staleness, averaged as v, the present commit included. A and V are the weights of all gradients in a and
of all squares in v, A <- (1 - 1/N) * A + 1/N from 0: exact while N changes. All four are of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from gem_core.rules.gem import gem_element
from gem_core.rules.gem_rms import GemRms, limited
from gem_core.rules.kernel import Kernel

__all__ = ["GemAveragedRms"]


def _gem_averaged_rms_update(  # type: ignore[no-untyped-def]
    theta, snapshot, moment, average, square, delta,
    mu, kappa, pi_min, pi_max, epsilon, inverse, eta, kept, share, whole, scale, keep, fresh, correction, floor, cap,
):  # fmt: skip
    gradient = delta * inverse
    gradient = gradient if gradient < np.float32(1e18) else np.float32(1e18)
    gradient = gradient if gradient > np.float32(-1e18) else np.float32(-1e18)
    average = kept * average + share * gradient
    mean = average * whole
    square = keep * square + fresh * (mean * mean)
    step = scale * (gradient / (np.sqrt(square * correction) + floor))
    step = cap if step > cap else step
    step = -cap if step < -cap else step
    theta, sent, moment, update, pi = gem_element(
        theta, snapshot, moment, eta * step, mu, kappa, pi_min, pi_max, epsilon
    )
    return theta, sent, moment, average, square, update, pi


class GemAveragedRms(GemRms):
    """Rule `gem` with precondition `averaged-rms`. The run's vectors are a and v."""

    kernel = Kernel(_gem_averaged_rms_update, proxy="moment")
    vectors_per_run = 2
    first_scalars = MappingProxyType({"square_weight": 0.0, "average_weight": 0.0, "staleness_sum": 0.0})
    precondition = "averaged-rms"

    def _after(self, staleness: int, eta: float) -> tuple[dict[str, float], tuple[float, ...]]:
        run, (inverse, eta, keep, fresh, correction) = super()._after(staleness, eta)
        stale_sum, weight = (self.scalars_of_run[name] for name in ("staleness_sum", "average_weight"))
        stale_sum = keep * stale_sum + fresh * staleness
        n = 1 + stale_sum * correction
        share = 1 / n if fresh else 0.0
        weight = (1 - share) * weight + share
        run |= {"staleness_sum": stale_sum, "average_weight": weight}
        return run, (inverse, eta, 1 - share, share, 1 / (weight or 1.0), n**-0.5, keep, fresh, correction)

    def _steps(
        self, vectors: Sequence[NDArray[np.float32]], delta: NDArray[np.float32], *scalars: np.float32
    ) -> NDArray[np.float32]:
        inverse, eta, kept, share, whole, scale, keep, fresh, correction = scalars
        (average, square), (floor, cap) = vectors, self._bounds
        gradient = limited(delta * inverse)
        mean = (kept * average + share * gradient) * whole
        square = keep * square + fresh * (mean * mean)
        ratios = scale * (gradient / (np.sqrt(square * correction) + floor))
        steps: NDArray[np.float32] = eta * np.clip(ratios, -cap, cap)
        return steps
