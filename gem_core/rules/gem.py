"""Gradient Energy Matching: Hermans and Louppe, 2018, arXiv 1805.08469, equations 19 and 27, algorithm 1.

Elementwise, in float32, in this order:

    m_w   <- mu * m_w + delta
    pi    =  clamp((kappa * |m_w| - |theta - s_w|) / (|delta| + epsilon), pi_min, pi_max)
    theta <- theta + pi * delta
    s_w   <- theta

pi is computed when the delta is applied, so theta - s_w is exact; the paper's worker computes it before it commits.
The clamp is not in the paper's equations, but in its code, and without its lower end runs of five workers and more
diverge. One worker is not momentum SGD (its update is sign(delta) * min(|m|, pi_max * |delta|)): that is as it must be.

Where delta = 0 nothing is applied, whatever pi: epsilon makes it a number, and the statistics leave it out. m_w still
decays and s_w is still refreshed there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numba import prange
from numpy.typing import NDArray

from gem_core.aligned import aligned_copy, aligned_zeros
from gem_core.errors import RuleError
from gem_core.rule_settings import GEM_SETTINGS
from gem_core.rules.blocks import (
    BLOCK,
    INTEGER,
    PARTIALS,
    READ_ONLY_VECTOR,
    SCALAR,
    STRIP,
    VECTOR,
    arithmetic,
    block_function,
    driver,
    driver_function,
    empty_partials,
    totals,
)
from gem_core.rules.interface import Statistics, UpdateRule, WorkerState

__all__ = ["Gem", "GemState"]

# Between these a sum of squares in float32 has overflowed nowhere, and what has underflowed is less than 1e-6 of it.
_LEAST_SUM, _LARGEST_SUM = np.float32(1e-28), np.float32(1e38)


class GemState(WorkerState):
    """A worker's snapshot and its moment m_w, an exponential sum of its deltas (float32, shape (n,); 0 at first)."""

    __slots__ = ("moment",)

    def __init__(self, snapshot: NDArray[np.float32], moment: NDArray[np.float32]) -> None:
        super().__init__(snapshot)
        self.moment = moment


class Gem(UpdateRule):
    """The rule `gem`: a delta may bring in as much energy as the worker's proxy has left beyond the drift."""

    name = "gem"
    vectors_per_worker = 2
    has_factors = True
    known_settings = GEM_SETTINGS

    def __init__(self, settings: Mapping[str, float]) -> None:
        super().__init__(settings)
        chosen = self.settings
        if chosen["pi_min"] > chosen["pi_max"]:
            raise RuleError(
                f"rule 'gem': pi_min = {chosen['pi_min']:g} is above pi_max = {chosen['pi_max']:g}; exchange them"
            )
        self._scalars = tuple(np.float32(chosen[name]) for name in ("momentum", "kappa", "pi_min", "pi_max", "epsilon"))

    def new_worker(self, parameters: NDArray[np.float32]) -> GemState:
        """A copy of `parameters`, and a moment of 0."""
        return GemState(aligned_copy(parameters), aligned_zeros(parameters.size))

    def factors(
        self,
        parameters: NDArray[np.float32],
        state: WorkerState,
        delta: NDArray[np.float32],
        at: NDArray[np.int64] | slice,
    ) -> NDArray[np.float32]:
        """Pi of the elements `at`, equation 27 with the clamp; where delta is 0 it means nothing."""
        assert isinstance(state, GemState)
        mu, kappa, least, most, epsilon = self._scalars
        deltas = delta[at]
        with np.errstate(over="ignore", invalid="ignore"):  # of runs that diverge
            moments = mu * state.moment[at] + deltas
            drifts = parameters[at] - state.snapshot[at]
            pi: NDArray[np.float32] = (kappa * np.abs(moments) - np.abs(drifts)) / (np.abs(deltas) + epsilon)
            return np.clip(pi, least, most, out=pi)

    def _commit(
        self,
        parameters: NDArray[np.float32],
        state: WorkerState,
        delta: NDArray[np.float32],
        staleness: int,
        parallel: bool,
    ) -> Statistics:
        assert isinstance(state, GemState)
        partials = empty_partials(parameters.size, 8)
        kernel = _commit_parallel if parallel else _commit_serial
        kernel(parameters, state.snapshot, state.moment, delta, *self._scalars, partials, BLOCK)
        moving, blocked, clamped, pi, moment, drift, delta_squares, update = totals(partials)
        return Statistics(
            mean_pi=pi / moving if moving else 0.0,
            blocked_fraction=blocked / moving if moving else 0.0,
            clamped_fraction=clamped / moving if moving else 0.0,
            proxy_norm=float(self._scalars[1]) * math.sqrt(moment),
            drift_norm=math.sqrt(drift),
            delta_norm=math.sqrt(delta_squares),
            update_norm=math.sqrt(update),
        )


@arithmetic
def _update(theta, snapshot, moment, delta, mu, kappa, pi_min, pi_max, epsilon):  # type: ignore[no-untyped-def]
    moment = mu * moment + delta
    drift = theta - snapshot
    pi = (kappa * abs(moment) - abs(drift)) / (abs(delta) + epsilon)
    pi = pi_min if pi < pi_min else pi
    pi = pi_max if pi > pi_max else pi
    update = pi * delta
    return moment, drift, pi, update, theta + update


@block_function
def _commit_strip(theta, snapshot, moment, delta, drifts, updates, mu, kappa, pi_min, pi_max, epsilon):  # type: ignore[no-untyped-def]
    """The update of a strip, with its statistics in float32: counts (exact up to 2^24), the sum of pi, four squares."""
    none, one = np.float32(0), np.float32(1)
    moving = blocked = clamped = pi_sum = none
    moment_squares = drift_squares = delta_squares = update_squares = none
    for i in range(theta.size):
        d = delta[i]
        m, drift, pi, update, new = _update(theta[i], snapshot[i], moment[i], d, mu, kappa, pi_min, pi_max, epsilon)
        moment[i] = m
        theta[i] = new
        snapshot[i] = new
        drifts[i] = drift
        updates[i] = update
        moves = one if d != none else none
        moving += moves
        blocked += moves if pi == pi_min else none
        clamped += moves if pi == pi_max else none
        pi_sum += pi if d != none else none
        moment_squares += m * m
        drift_squares += drift * drift
        delta_squares += d * d
        update_squares += update * update
    return moving, blocked, clamped, pi_sum, moment_squares, drift_squares, delta_squares, update_squares


@block_function
def _precise_squares(values):  # type: ignore[no-untyped-def]
    total = np.float64(0)
    for i in range(values.size):
        total += np.float64(values[i]) * np.float64(values[i])
    return total


@driver_function
def _squares(quick, values):  # type: ignore[no-untyped-def]
    """The sum of the squares of `values` in float64: `quick`, found in float32, where that can be trusted."""
    if _LEAST_SUM <= quick <= _LARGEST_SUM:
        return np.float64(quick)
    return _precise_squares(values)


@driver_function
def _commit_block(theta, snapshot, moment, delta, mu, kappa, pi_min, pi_max, epsilon, sums):  # type: ignore[no-untyped-def]
    drifts, updates = np.empty(STRIP, np.float32), np.empty(STRIP, np.float32)
    sums[:] = 0
    for a in range(0, theta.size, STRIP):
        b = min(a + STRIP, theta.size)
        deltas, moments, drift, update = delta[a:b], moment[a:b], drifts[: b - a], updates[: b - a]
        found = _commit_strip(
            theta[a:b], snapshot[a:b], moments, deltas, drift, update, mu, kappa, pi_min, pi_max, epsilon
        )
        for column in range(4):
            sums[column] += found[column]
        sums[4] += _squares(found[4], moments)
        sums[5] += _squares(found[5], drift)
        sums[6] += _squares(found[6], deltas)
        sums[7] += _squares(found[7], update)


_SIGNATURE = (VECTOR, VECTOR, VECTOR, READ_ONLY_VECTOR, SCALAR, SCALAR, SCALAR, SCALAR, SCALAR, PARTIALS, INTEGER)


@driver(*_SIGNATURE, parallel=False)
def _commit_serial(theta, snapshot, moment, delta, mu, kappa, pi_min, pi_max, epsilon, partials, length):  # type: ignore[no-untyped-def]
    for block in range(partials.shape[0]):
        a, b = block * length, min((block + 1) * length, theta.size)
        _commit_block(
            theta[a:b], snapshot[a:b], moment[a:b], delta[a:b], mu, kappa, pi_min, pi_max, epsilon, partials[block]
        )


@driver(*_SIGNATURE, parallel=True)
def _commit_parallel(theta, snapshot, moment, delta, mu, kappa, pi_min, pi_max, epsilon, partials, length):  # type: ignore[no-untyped-def]
    for block in prange(partials.shape[0]):
        a, b = block * length, min((block + 1) * length, theta.size)
        _commit_block(
            theta[a:b], snapshot[a:b], moment[a:b], delta[a:b], mu, kappa, pi_min, pi_max, epsilon, partials[block]
        )
