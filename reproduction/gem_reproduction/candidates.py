"""Rules that were tried in place of GEM's (figure "better-default"): in NumPy, float32, and nowhere else.

The server does not have them, since the table does not say that it should. u is what is added to theta, m_w the moment
of worker w, s_w its snapshot; elementwise, in this order, with s_w <- theta at the end:

    signed-moment        m_w <- mu * m_w + delta;  u = sign(m_w) * max(0, kappa * |m_w| - |theta - s_w|)
    clipped-difference   m_w <- mu * m_w + delta;  u = m_w - (theta - s_w), cut to at most pi_max * |delta| either way
    tuned-momentum       GEM, with the mu of YellowFin's formula

The first goes where the moment points, also where a delta points elsewhere, and has no upper bound; the second is what
is missing of the moment, in either direction.

YellowFin: Zhang and Mitliagkas, 2017, "YellowFin and the Art of Momentum Tuning", arXiv 1706.03471, with what its
authors' code measures. From all workers' deltas as they come (g stands for the gradient), with averages that forget by
`beta` and are corrected for their beginning at 0:

    h = |g|^2;  h_max, h_min = averages of the logarithm of the largest and the least h of the last 20
    C = average(|g|^2) - |average(g)|^2;  D = average(average(|g|) / average(|g|^2))
    mu = max(x^2, ((sqrt(h_max / h_min) - 1) / (sqrt(h_max / h_min) + 1))^2),  2 * C * (1 - x)^3 = D^2 * h_min^2 * x

and mu itself is averaged, from 0.9 on. A rule sees deltas, -eta * g: D^2 * h_min^2 / C and h_max / h_min are the same
with these. Eta stays what it is: only the momentum is tuned.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gem_core import UpdateRule, WorkerState
from gem_core.rules import Setting, Statistics

_MU = Setting("momentum", 0.9, 0.0, 0.9999, "mu of each worker's moment")
_KAPPA = Setting("kappa", 1.0, 0.0, 1e6, "amplification of the energy proxy")
_PI_MAX = Setting("pi_max", 5.0, 0.0, 1e6, "the largest factor of a delta")

# Of YellowFin's authors: how many gradients the range of the curvature is taken from.
_WINDOW = 20
# The momentum that is tuned begins where GEM's is, and stays below 1.
_FIRST_MU, _MOST_MU = 0.9, 0.999
# So that a gradient of 0 divides nothing by 0; of YellowFin's authors' code.
_EPSILON = 1e-15


class _Moments(UpdateRule):
    """Each worker has a snapshot and a moment; a subclass says what is added."""

    vectors_per_worker = 2

    def _commit(
        self,
        parameters: NDArray[np.float32],
        state: WorkerState,
        delta: NDArray[np.float32],
        staleness: int,
        parallel: bool,
    ) -> Statistics:
        (moment,) = state.vectors
        with np.errstate(over="ignore", invalid="ignore"):  # of runs that diverge
            moment *= np.float32(self.momentum(delta))
            moment += delta
            drift = parameters - state.snapshot
            update = self.update(moment, drift, delta)
            parameters += update
            np.copyto(state.snapshot, parameters)
            return _statistics(update, moment, drift, delta)

    def momentum(self, delta: NDArray[np.float32]) -> float:
        """Mu for this commit."""
        return self.settings["momentum"]

    def update(
        self, moment: NDArray[np.float32], drift: NDArray[np.float32], delta: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """What is added to theta; drift = theta - s_w."""
        raise NotImplementedError


class SignedMoment(_Moments):
    """`signed-moment`: the way of the moment, by what is left of its energy."""

    name = "signed-moment"
    known_settings = (_MU, _KAPPA)

    def update(
        self, moment: NDArray[np.float32], drift: NDArray[np.float32], delta: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """See the module."""
        left = np.float32(self.settings["kappa"]) * np.abs(moment) - np.abs(drift)
        wanted: NDArray[np.float32] = np.sign(moment) * np.maximum(left, np.float32(0))
        return wanted


class ClippedDifference(_Moments):
    """`clipped-difference`: what is missing of the moment."""

    name = "clipped-difference"
    known_settings = (_MU, _PI_MAX)

    def update(
        self, moment: NDArray[np.float32], drift: NDArray[np.float32], delta: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """See the module."""
        most = np.float32(self.settings["pi_max"]) * np.abs(delta)
        wanted: NDArray[np.float32] = np.clip(moment - drift, -most, most)
        return wanted


class TunedMomentum(_Moments):
    """`tuned-momentum`: GEM with YellowFin's mu, of the whole run."""

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

    def momentum(self, delta: NDArray[np.float32]) -> float:
        """Measured, this delta included."""
        return self._yellowfin.measure(delta)

    def update(
        self, moment: NDArray[np.float32], drift: NDArray[np.float32], delta: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """GEM's, pi from 0 on."""
        left = np.float32(self.settings["kappa"]) * np.abs(moment) - np.abs(drift)
        pi = np.clip(left / (np.abs(delta) + np.float32(1e-12)), np.float32(0), np.float32(self.settings["pi_max"]))
        wanted: NDArray[np.float32] = np.multiply(pi, delta, dtype=np.float32)
        return wanted


class YellowFinMomentum:
    """YellowFin's mu, measured from gradients, or from anything that is proportional to them (see the module)."""

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
        """Take one more gradient in, and return mu."""
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
    """YellowFin's mu of its measurements: D, C, h_min, h_max (see the module)."""
    p = (distance * least) ** 2 / (2 * variance)
    # x in [0, 1] with p * x = (1 - x)^3: the difference falls there, so halving finds it to the last bit.
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
    """As gem_core's rules have them, with u / delta for pi; none is clamped, whatever was cut."""
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
