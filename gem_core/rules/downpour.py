"""DOWNPOUR: every delta is added as it is (Dean et al., 2012, "Large Scale Distributed Deep Networks", section 4.1).

    theta <- theta + delta
    s_w   <- theta

The baseline of the GEM paper's figures 1 and 6: it degrades and then fails as workers are added.
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
    VECTOR,
    arithmetic,
    block_function,
    driver,
    empty_partials,
    totals,
)
from gem_core.rules.interface import Statistics, UpdateRule, WorkerState

__all__ = ["Downpour"]


class Downpour(UpdateRule):
    """The rule `downpour`: theta += delta. It has no settings; `mean_pi` is 1 wherever something was applied."""

    name = "downpour"
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
        partials = empty_partials(parameters.size, 2)
        kernel = _commit_parallel if parallel else _commit_serial
        kernel(parameters, state.snapshot, delta, partials, BLOCK)
        drift, delta_squares = totals(partials)
        delta_norm = math.sqrt(delta_squares)
        return Statistics(
            mean_pi=1.0 if delta_norm else 0.0,
            blocked_fraction=0.0,
            clamped_fraction=0.0,
            proxy_norm=0.0,
            drift_norm=math.sqrt(drift),
            delta_norm=delta_norm,
            update_norm=delta_norm,
        )


@arithmetic
def _update(theta, snapshot, delta):  # type: ignore[no-untyped-def]
    return theta - snapshot, theta + delta


@block_function
def _commit_block(theta, snapshot, delta, sums):  # type: ignore[no-untyped-def]
    drift_squares = delta_squares = np.float64(0)
    for i in range(theta.size):
        d = delta[i]
        drift, new = _update(theta[i], snapshot[i], d)
        theta[i] = new
        snapshot[i] = new
        drift_squares += np.float64(drift) * np.float64(drift)
        delta_squares += np.float64(d) * np.float64(d)
    sums[0] = drift_squares
    sums[1] = delta_squares


_SIGNATURE = (VECTOR, VECTOR, READ_ONLY_VECTOR, PARTIALS, INTEGER)


@driver(*_SIGNATURE, parallel=False)
def _commit_serial(theta, snapshot, delta, partials, length):  # type: ignore[no-untyped-def]
    for block in range(partials.shape[0]):
        a, b = block * length, min((block + 1) * length, theta.size)
        _commit_block(theta[a:b], snapshot[a:b], delta[a:b], partials[block])


@driver(*_SIGNATURE, parallel=True)
def _commit_parallel(theta, snapshot, delta, partials, length):  # type: ignore[no-untyped-def]
    for block in prange(partials.shape[0]):
        a, b = block * length, min((block + 1) * length, theta.size)
        _commit_block(theta[a:b], snapshot[a:b], delta[a:b], partials[block])
