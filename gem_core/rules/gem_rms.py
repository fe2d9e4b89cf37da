"""GEM on gradients divided by their root mean square, as in RMSprop and, without momentum, Adam.

Kingma and Ba, 2015, "Adam", arXiv 1412.6980, for the bias correction; in this order, with eta as in the delta:

    g     =  delta * (1 / eta)          limited to +-1e18, so that its square is finite
    v     <- beta2 * v + (1 - beta2) * g^2
    step  =  eta * clamp(g / (sqrt(v * (1 / V)) + epsilon), -cap, cap)
    theta, s_w, m_w <- as rule `gem`, with step for delta

V is the weight of all squares in v, V <- beta2 * V + (1 - beta2) from 0. v and V are of the run. If eta is 0 (below
1e-37), v and V stay. Statistics are of the step, but `delta_norm`, and which elements count, of the delta.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from gem_core.rule_settings import PRECONDITIONED_SETTINGS
from gem_core.rules.gem import Gem, gem_element
from gem_core.rules.interface import RuleState
from gem_core.rules.kernel import Kernel

__all__ = ["LEAST_ETA", "GemRms", "limited"]

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
    known_settings = PRECONDITIONED_SETTINGS

    def __init__(self, settings: Mapping[str, float]) -> None:
        super().__init__(settings)
        self._bounds = tuple(np.float32(self.settings[f"precondition_{name}"]) for name in ("epsilon", "cap"))

    def factors(
        self,
        parameters: NDArray[np.float32],
        state: RuleState,
        delta: NDArray[np.float32],
        at: NDArray[np.int64] | slice,
        staleness: int = 0,
        eta: float = math.nan,
    ) -> NDArray[np.float32] | None:
        """Pi of the steps; None without eta."""
        if math.isnan(eta):
            return None
        vectors = [one[at] for one in self.vectors_of_run(parameters)]
        _, scalars = self._after(staleness, eta)
        with np.errstate(over="ignore", under="ignore"):
            steps = self._steps(vectors, delta[at], *map(np.float32, scalars))
        return self._factors(parameters, state, steps, at)

    def _scalars(self, staleness: int, eta: float) -> tuple[np.float32, ...]:
        self.scalars_of_run, scalars = self._after(staleness, eta)
        return (*self._constants, *map(np.float32, scalars), *self._bounds)

    def _after(self, staleness: int, eta: float) -> tuple[dict[str, float], tuple[float, ...]]:
        beta2, weight = self.settings["beta2"], self.scalars_of_run["square_weight"]
        if eta < LEAST_ETA:
            return dict(self.scalars_of_run), (0.0, 0.0, 1.0, 0.0, 1 / (weight or 1.0))
        weight = beta2 * weight + 1 - beta2
        return {"square_weight": weight}, (1 / eta, eta, beta2, 1 - beta2, 1 / weight)

    def _steps(
        self, vectors: Sequence[NDArray[np.float32]], delta: NDArray[np.float32], *scalars: np.float32
    ) -> NDArray[np.float32]:
        inverse, eta, keep, fresh, correction = scalars
        (square,), (floor, cap) = vectors, self._bounds
        gradient = limited(delta * inverse)
        square = keep * square + fresh * (gradient * gradient)
        steps: NDArray[np.float32] = eta * np.clip(gradient / (np.sqrt(square * correction) + floor), -cap, cap)
        return steps


def limited(gradients: NDArray[np.float32]) -> NDArray[np.float32]:
    """Limit gradients as the kernels do."""
    return np.clip(gradients, np.float32(-1e18), np.float32(1e18))
