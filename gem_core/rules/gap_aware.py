"""Gap-Aware: a delta counts the less the further the parameters have moved since it was computed, element by element.

Barkai, Hakimi and Schuster, 2020, "Gap Aware Mitigation of Gradient Staleness", arXiv 1909.10802, without its momentum.
The gap is a distance, in steps: what lies between theta and the worker's parameters, divided by the size C of an
average step. As the authors' group has it in code (FTPipe, `sgd_gap_aware.py`, where the average is a root of a mean
square, corrected for its start at 0), with g the gradient:

    V <- G * V + (1 - G) * g^2
    C =  eta_max * (sqrt(V / (1 - G^t)) + 1e-8)
    g <- g / (1 + |theta - s_w| / C)

In deltas, elementwise, in float32, in this order, with t the commits so far, this one included:

    q     <- G * q + (1 - G) * delta^2
    step  =  sqrt(q / (1 - G^t)) + epsilon
    theta <- theta + delta / (1 + |theta - s_w| / step)
    s_w   <- theta

q is one for the run, and eta^2 times V: for a constant eta the same, with epsilon = eta * 1e-8, which is what the
default is for eta 0.05. With an eta that falls, q follows it within some 1 / (1 - G) commits, where C keeps the
largest. Where nothing has moved, delta is applied as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

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
from gem_core.rules.interface import Setting, Statistics, UpdateRule, WorkerState
from gem_core.rules.run_vectors import RunVectors

__all__ = ["GapAware"]


class GapAware(UpdateRule):
    """The rule `gap-aware`; `mean_pi` is the mean of 1 / (1 + gap)."""

    name = "gap-aware"
    vectors_per_worker = 1
    vectors_per_run = 1
    known_settings = (
        Setting("decay", 0.999, 0.0, 0.999999, "G: how long the average step remembers"),
        Setting("epsilon", 5e-10, 1e-30, 1.0, "added to the average step: eta times 1e-8"),
    )

    def __init__(self, settings: Mapping[str, float]) -> None:
        super().__init__(settings)
        self._run = RunVectors(self.vectors_per_run)
        self._commits = 0

    def new_worker(self, parameters: NDArray[np.float32]) -> WorkerState:
        """A copy of `parameters`."""
        self._run.of(parameters)
        return WorkerState(aligned_copy(parameters))

    def _commit(
        self,
        parameters: NDArray[np.float32],
        state: WorkerState,
        delta: NDArray[np.float32],
        staleness: int,
        parallel: bool,
    ) -> Statistics:
        (mean_square,) = self._run.of(parameters)
        self._commits += 1
        decay = self.settings["decay"]
        scalars = (decay, 1 - decay, 1 - decay**self._commits, self.settings["epsilon"])
        partials = empty_partials(parameters.size, 5)
        kernel = _commit_parallel if parallel else _commit_serial
        kernel(parameters, state.snapshot, mean_square, delta, *map(np.float32, scalars), partials, BLOCK)
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
def _update(theta, snapshot, mean_square, delta, keep, fresh, bias, epsilon):  # type: ignore[no-untyped-def]
    one = np.float32(1)
    mean_square = keep * mean_square + fresh * (delta * delta)
    drift = theta - snapshot
    penalty = one + abs(drift) / (np.sqrt(mean_square / bias) + epsilon)
    update = delta / penalty
    return mean_square, drift, one / penalty, update, theta + update


@block_function
def _commit_block(theta, snapshot, mean_square, delta, keep, fresh, bias, epsilon, sums):  # type: ignore[no-untyped-def]
    none, one = np.float64(0), np.float64(1)
    moving = factors = drift_squares = delta_squares = update_squares = none
    for i in range(theta.size):
        d = delta[i]
        q, drift, factor, update, new = _update(theta[i], snapshot[i], mean_square[i], d, keep, fresh, bias, epsilon)
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
def _commit_serial(theta, snapshot, mean_square, delta, keep, fresh, bias, epsilon, partials, length):  # type: ignore[no-untyped-def]
    for block in range(partials.shape[0]):
        a, b = block * length, min((block + 1) * length, theta.size)
        _commit_block(
            theta[a:b], snapshot[a:b], mean_square[a:b], delta[a:b], keep, fresh, bias, epsilon, partials[block]
        )


@driver(*_SIGNATURE, parallel=True)
def _commit_parallel(theta, snapshot, mean_square, delta, keep, fresh, bias, epsilon, partials, length):  # type: ignore[no-untyped-def]
    for block in prange(partials.shape[0]):
        a, b = block * length, min((block + 1) * length, theta.size)
        _commit_block(
            theta[a:b], snapshot[a:b], mean_square[a:b], delta[a:b], keep, fresh, bias, epsilon, partials[block]
        )
