"""Adaptive staleness: a delta counts the less the older the parameters it was computed at (GEM paper, figure 1c).

    theta <- theta + delta / (tau + 1)
    s_w   <- theta

tau is the number of commits applied since the worker's snapshot. Stable, and the slower the more workers.
"""

from __future__ import annotations

import math

import numpy as np
from numba import prange
from numpy.typing import NDArray

from gem_core.aligned import aligned_copy
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
from gem_core.rules.interface import Statistics, UpdateRule, WorkerState

__all__ = ["AdaptiveStaleness"]


class AdaptiveStaleness(UpdateRule):
    """The rule `adaptive-staleness`: theta += delta / (tau + 1). It has no settings; `mean_pi` is 1 / (tau + 1)."""

    name = "adaptive-staleness"
    vectors_per_worker = 1

    def new_worker(self, parameters: NDArray[np.float32]) -> WorkerState:
        """A copy of `parameters`."""
        return WorkerState(aligned_copy(parameters))

    def _commit(
        self,
        parameters: NDArray[np.float32],
        state: WorkerState,
        delta: NDArray[np.float32],
        staleness: int,
        parallel: bool,
    ) -> Statistics:
        partials = empty_partials(parameters.size, 3)
        kernel = _commit_parallel if parallel else _commit_serial
        kernel(parameters, state.snapshot, delta, np.float32(staleness + 1), partials, BLOCK)
        drift, delta_squares, update = totals(partials)
        return Statistics(
            mean_pi=1.0 / (staleness + 1) if delta_squares else 0.0,
            blocked_fraction=0.0,
            clamped_fraction=0.0,
            proxy_norm=0.0,
            drift_norm=math.sqrt(drift),
            delta_norm=math.sqrt(delta_squares),
            update_norm=math.sqrt(update),
        )


@arithmetic
def _update(theta, snapshot, delta, divisor):  # type: ignore[no-untyped-def]
    update = delta / divisor
    return theta - snapshot, update, theta + update


@block_function
def _commit_block(theta, snapshot, delta, divisor, sums):  # type: ignore[no-untyped-def]
    drift_squares = delta_squares = update_squares = np.float64(0)
    for i in range(theta.size):
        d = delta[i]
        drift, update, new = _update(theta[i], snapshot[i], d, divisor)
        theta[i] = new
        snapshot[i] = new
        drift_squares += np.float64(drift) * np.float64(drift)
        delta_squares += np.float64(d) * np.float64(d)
        update_squares += np.float64(update) * np.float64(update)
    sums[0] = drift_squares
    sums[1] = delta_squares
    sums[2] = update_squares


_SIGNATURE = (VECTOR, VECTOR, READ_ONLY_VECTOR, SCALAR, PARTIALS, INTEGER)


@driver(*_SIGNATURE, parallel=False)
def _commit_serial(theta, snapshot, delta, divisor, partials, length):  # type: ignore[no-untyped-def]
    for block in range(partials.shape[0]):
        a, b = block * length, min((block + 1) * length, theta.size)
        _commit_block(theta[a:b], snapshot[a:b], delta[a:b], divisor, partials[block])


@driver(*_SIGNATURE, parallel=True)
def _commit_parallel(theta, snapshot, delta, divisor, partials, length):  # type: ignore[no-untyped-def]
    for block in prange(partials.shape[0]):
        a, b = block * length, min((block + 1) * length, theta.size)
        _commit_block(theta[a:b], snapshot[a:b], delta[a:b], divisor, partials[block])
