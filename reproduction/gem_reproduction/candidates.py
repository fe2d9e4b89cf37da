"""Experimental rules in NumPy float32, not in the server.

YellowFin: Zhang and Mitliagkas, 2017, arXiv 1706.03471. Averages over all workers' deltas (g: gradient) decay by `beta`
and are bias-corrected:

    h = |g|^2;  h_max, h_min = averages of the logarithm of the largest and the least h of the last 20
    C = average(|g|^2) - |average(g)|^2;  D = average(average(|g|) / average(|g|^2))
    mu = max(x^2, ((sqrt(h_max / h_min) - 1) / (sqrt(h_max / h_min) + 1))^2),  2 * C * (1 - x)^3 = D^2 * h_min^2 * x

mu is averaged from 0.9.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from gem_core import RuleState, UpdateRule
from gem_core.rules import Setting, Statistics

_MU = Setting("momentum", 0.9, 0.0, 0.9999, "mu of each worker's moment")
_KAPPA = Setting("kappa", 1.0, 0.0, 1e6, "amplification of the energy proxy")
_PI_MAX = Setting("pi_max", 5.0, 0.0, 1e6, "the largest factor of a delta")

# YellowFin's curvature window.
_WINDOW = 20
# Bounds of tuned momentum.
_FIRST_MU, _MOST_MU = 0.9, 0.999
# From YellowFin's code.
_EPSILON = 1e-15


class _Moments(UpdateRule):
    vectors_per_worker = 2

    def _commit(
        self,
        parameters: NDArray[np.float32],
        state: RuleState,
        delta: NDArray[np.float32],
        staleness: int,
        eta: float,
        parallel: bool,
    ) -> Statistics:
        (moment,) = state.vectors
        with np.errstate(over="ignore", invalid="ignore"):  # diverging runs
            moment *= np.float32(self.momentum(delta))
            moment += delta
            drift = parameters - state.snapshot
            update = self.update(moment, drift, delta)
            parameters += update
            np.copyto(state.snapshot, parameters)
            return _statistics(update, moment, drift, delta)

    def momentum(self, delta: NDArray[np.float32]) -> float:
        return self.settings["momentum"]

    def update(
        self, moment: NDArray[np.float32], drift: NDArray[np.float32], delta: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return the change of theta. `drift` is theta - s_w."""
        raise NotImplementedError


class SignedMoment(_Moments):
    """`signed-moment`: along the moment, by its remaining energy."""

    name = "signed-moment"
    known_settings = (_MU, _KAPPA)

    def update(
        self, moment: NDArray[np.float32], drift: NDArray[np.float32], delta: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return sign(m_w) * max(0, kappa * |m_w| - |drift|)."""
        left = np.float32(self.settings["kappa"]) * np.abs(moment) - np.abs(drift)
        wanted: NDArray[np.float32] = np.sign(moment) * np.maximum(left, np.float32(0))
        return wanted


class ClippedDifference(_Moments):
    """`clipped-difference`: what the moment lacks."""

    name = "clipped-difference"
    known_settings = (_MU, _PI_MAX)

    def update(
        self, moment: NDArray[np.float32], drift: NDArray[np.float32], delta: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return m_w - drift, clipped to pi_max * |delta|."""
        most = np.float32(self.settings["pi_max"]) * np.abs(delta)
        wanted: NDArray[np.float32] = np.clip(moment - drift, -most, most)
        return wanted


class TunedMomentum(_Moments):
    """GEM with YellowFin's mu."""

    name = "tuned-momentum"
    vectors_per_run = 1
    known_settings = (
        _KAPPA,
        _PI_MAX,
        Setting("beta", 0.999, 0.0, 0.999999, "how long the measurements, and mu itself, remember"),
    )

    def __init__(self, settings: Mapping[str, float]) -> None:
        super().__init__(settings)
        self._yellowfin = YellowFinMomentum(self.settings["beta"])

    @override
    def momentum(self, delta: NDArray[np.float32]) -> float:
        return self._yellowfin.measure(delta)

    @override
    def update(
        self, moment: NDArray[np.float32], drift: NDArray[np.float32], delta: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        left = np.float32(self.settings["kappa"]) * np.abs(moment) - np.abs(drift)
        pi = np.clip(left / (np.abs(delta) + np.float32(1e-12)), np.float32(0), np.float32(self.settings["pi_max"]))
        wanted: NDArray[np.float32] = np.multiply(pi, delta, dtype=np.float32)
        return wanted


class YellowFinMomentum:
    """YellowFin's estimate of mu. It needs gradients only up to a common factor."""

    def __init__(self, beta: float) -> None:
        self.mu = _FIRST_MU
        self._beta = beta
        self._window: deque[float] = deque(maxlen=_WINDOW)
        self._correction = 0.0
        self._logarithm_of_least = 0.0
        self._logarithm_of_most = 0.0
        self._norm = 0.0
        self._square = 0.0
        self._distance = 0.0
        self._gradient: NDArray[np.float64] | None = None

    def measure(self, gradient: NDArray[np.float32]) -> float:
        """Add a gradient and return mu."""
        values = gradient.astype(np.float64)
        square = float(np.dot(values, values))
        self._window.append(square + _EPSILON)
        self._correction = self._average(self._correction, 1.0)
        self._logarithm_of_least = self._average(self._logarithm_of_least, math.log(min(self._window)))
        self._logarithm_of_most = self._average(self._logarithm_of_most, math.log(max(self._window)))
        self._norm = self._average(self._norm, math.sqrt(square))
        self._square = self._average(self._square, square)
        self._gradient = (1 - self._beta) * values + (0 if self._gradient is None else self._beta * self._gradient)
        self._distance = self._average(self._distance, self._norm / (self._square + _EPSILON))
        mean = self._gradient / self._correction
        variance = max(self._square / self._correction - float(np.dot(mean, mean)), _EPSILON)
        least = math.exp(self._logarithm_of_least / self._correction)
        most = math.exp(self._logarithm_of_most / self._correction)
        wanted = momentum_of(self._distance / self._correction, variance, least, most)
        self.mu = min(self._average(self.mu, wanted), _MOST_MU)
        return self.mu

    def _average(self, before: float, value: float) -> float:
        return self._beta * before + (1 - self._beta) * value


def momentum_of(distance: float, variance: float, least: float, most: float) -> float:
    """Compute mu from D (`distance`), C (`variance`), h_min (`least`) and h_max (`most`)."""
    p = (distance * least) ** 2 / (2 * variance)
    # Bisect p * x = (1 - x)^3 on [0, 1].
    low, high = 0.0, 1.0
    for _ in range(60):
        x = (low + high) / 2
        low, high = (x, high) if (1 - x) ** 3 > p * x else (low, x)
    root = math.sqrt(max(most / least, 1.0))
    return max(low**2, ((root - 1) / (root + 1)) ** 2)


CANDIDATES: Mapping[str, type[UpdateRule]] = {
    rule.name: rule for rule in (SignedMoment, ClippedDifference, TunedMomentum)
}


def _statistics(
    update: NDArray[np.float32], moment: NDArray[np.float32], drift: NDArray[np.float32], delta: NDArray[np.float32]
) -> Statistics:
    """Return statistics like gem_core's, in which u / delta stands for pi."""
    moving = delta != 0
    factors = (update[moving] / delta[moving]).astype(np.float64)
    return Statistics(
        mean_pi=float(factors.mean()) if factors.size else 0.0,
        blocked_fraction=float((factors == 0).mean()) if factors.size else 0.0,
        clamped_fraction=0.0,
        proxy_norm=_norm(moment),
        drift_norm=_norm(drift),
        delta_norm=_norm(delta),
        update_norm=_norm(update),
    )


def _norm(values: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(values.astype(np.float64)))
