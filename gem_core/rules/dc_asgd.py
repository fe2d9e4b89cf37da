"""DC-ASGD, adaptive form (DC-ASGD-a): a stale gradient is corrected by what others have moved since it was computed.

Zheng et al., 2017, "Asynchronous Stochastic Gradient Descent with Delay Compensation", arXiv 1609.08326, the
adaptive form. With g the gradient and w_bak the parameters that it was computed at, the authors' implementation has

    MeanSquare <- m * MeanSquare + (1 - m) * g^2
    w          <- w - eta * (g + lambda / sqrt(MeanSquare + 1e-7) * g * g * (w - w_bak))

In deltas, delta = -eta * g, elementwise, in float32, in this order:

    q_w    <- m * q_w + (1 - m) * delta^2
    factor =  1 - lambda * delta / sqrt(q_w + epsilon) * (theta - s_w)
    theta  <- theta + factor * delta
    s_w    <- theta

q_w is eta^2 times MeanSquare, and eta cancels out of the rest: the same lambda, and epsilon = eta^2 * 1e-7, which is
what the default is for eta 0.05. With an eta that changes, q_w remembers deltas of the older one for some commits.
MeanSquare is one of each worker, as in the authors' own code (Multiverso's updater). With lambda 0 this is DOWNPOUR.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numba import prange
from numpy.typing import NDArray

from gem_core.aligned import aligned_copy, aligned_zeros
from gem_core.rules.blocks import (
    BLOCK,
    INTEGER,
    PARTIALS,
    READ_ONLY_VECTOR,
    SCALAR,
    VECTOR,
    arithmetic,
    block_function,
    driver,
    empty_partials,
    totals,
)
from gem_core.rules.interface import Setting, Statistics, UpdateRule, WorkerState

__all__ = ["DcAsgd", "DcAsgdState"]


class DcAsgdState(WorkerState):
    """A worker's snapshot and q_w, the moving mean square of its deltas (float32, shape (n,); 0 at first)."""

    __slots__ = ("mean_square",)

    def __init__(self, snapshot: NDArray[np.float32], mean_square: NDArray[np.float32]) -> None:
        super().__init__(snapshot)
        self.mean_square = mean_square


class DcAsgd(UpdateRule):
    """The rule `dc-asgd`; `mean_pi` is the mean of the factor."""

    name = "dc-asgd"
    vectors_per_worker = 2
    known_settings = (
        Setting("strength", 2.0, 0.0, 1e6, "lambda: how much of the correction is applied; 0 is downpour"),
        Setting("decay", 0.95, 0.0, 0.9999, "m: how long the mean square of a worker's deltas remembers"),
        Setting("epsilon", 2.5e-10, 1e-30, 1.0, "added to the mean square of deltas: eta^2 times the paper's 1e-7"),
    )

    def __init__(self, settings: Mapping[str, float]) -> None:
        super().__init__(settings)
        chosen = self.settings
        values = (chosen["strength"], chosen["decay"], 1 - chosen["decay"], chosen["epsilon"])
        self._scalars = tuple(np.float32(value) for value in values)

    def new_worker(self, parameters: NDArray[np.float32]) -> DcAsgdState:
        """A copy of `parameters`, and a mean square of 0."""
        return DcAsgdState(aligned_copy(parameters), aligned_zeros(parameters.size))

    def _commit(
        self,
        parameters: NDArray[np.float32],
        state: WorkerState,
        delta: NDArray[np.float32],
        staleness: int,
        parallel: bool,
    ) -> Statistics:
        assert isinstance(state, DcAsgdState)
        partials = empty_partials(parameters.size, 5)
        kernel = _commit_parallel if parallel else _commit_serial
        kernel(parameters, state.snapshot, state.mean_square, delta, *self._scalars, partials, BLOCK)
        moving, factor, drift, delta_squares, update = totals(partials)
        return Statistics(
            mean_pi=factor / moving if moving else 0.0,
            blocked_fraction=0.0,
            clamped_fraction=0.0,
            proxy_norm=0.0,
            drift_norm=math.sqrt(drift),
            delta_norm=math.sqrt(delta_squares),
            update_norm=math.sqrt(update),
        )


@arithmetic
def _update(theta, snapshot, mean_square, delta, strength, keep, fresh, epsilon):  # type: ignore[no-untyped-def]
    one = np.float32(1)
    mean_square = keep * mean_square + fresh * (delta * delta)
    drift = theta - snapshot
    # In this order a square that overflows leaves no correction instead of NaN.
    factor = one - strength * (delta / np.sqrt(mean_square + epsilon)) * drift
    update = factor * delta
    return mean_square, drift, factor, update, theta + update


@block_function
def _commit_block(theta, snapshot, mean_square, delta, strength, keep, fresh, epsilon, sums):  # type: ignore[no-untyped-def]
    none, one = np.float64(0), np.float64(1)
    moving = factors = drift_squares = delta_squares = update_squares = none
    for i in range(theta.size):
        d = delta[i]
        q, drift, factor, update, new = _update(
            theta[i], snapshot[i], mean_square[i], d, strength, keep, fresh, epsilon
        )
        mean_square[i] = q
        theta[i] = new
        snapshot[i] = new
        moves = d != np.float32(0)
        moving += one if moves else none
        factors += np.float64(factor) if moves else none
        drift_squares += np.float64(drift) * np.float64(drift)
        delta_squares += np.float64(d) * np.float64(d)
        update_squares += np.float64(update) * np.float64(update)
    sums[0] = moving
    sums[1] = factors
    sums[2] = drift_squares
    sums[3] = delta_squares
    sums[4] = update_squares


_SIGNATURE = (VECTOR, VECTOR, VECTOR, READ_ONLY_VECTOR, SCALAR, SCALAR, SCALAR, SCALAR, PARTIALS, INTEGER)


@driver(*_SIGNATURE, parallel=False)
def _commit_serial(theta, snapshot, mean_square, delta, strength, keep, fresh, epsilon, partials, length):  # type: ignore[no-untyped-def]
    for block in range(partials.shape[0]):
        a, b = block * length, min((block + 1) * length, theta.size)
        _commit_block(
            theta[a:b], snapshot[a:b], mean_square[a:b], delta[a:b], strength, keep, fresh, epsilon, partials[block]
        )


@driver(*_SIGNATURE, parallel=True)
def _commit_parallel(theta, snapshot, mean_square, delta, strength, keep, fresh, epsilon, partials, length):  # type: ignore[no-untyped-def]
    for block in prange(partials.shape[0]):
        a, b = block * length, min((block + 1) * length, theta.size)
        _commit_block(
            theta[a:b], snapshot[a:b], mean_square[a:b], delta[a:b], strength, keep, fresh, epsilon, partials[block]
        )
