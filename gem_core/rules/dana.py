"""DANA: momentum of each worker, and gradients at where theta is expected to be when they arrive.

Hakimi, Barkai, Gabel and Schuster, 2019, "Taming Momentum in a Distributed Asynchronous Environment", arXiv 1907.11612,
DANA-Zero. Each worker has a momentum of its own; what it is sent is theta after all momenta have moved it once more:

    V     <- V - v_w
    v_w   <- mu * v_w + delta
    V     <- V + v_w            the sum over all workers
    theta <- theta + v_w
    s_w   <- theta + mu * V

elementwise, in float32. In the paper theta <- theta - eta * v with v in gradients: with a constant eta that is the same
v times -eta. The authors' own simulator (DANA-DC, without its delay compensation) does the same. One worker alone is
Nesterov's accelerated gradient: V = v_w, exactly. With mu = 0 this is DOWNPOUR. The momentum of a worker that has gone
is taken out of V, or theta would be expected to move by it for ever.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numba import prange
from numpy.typing import NDArray

from gem_core.aligned import aligned_empty, aligned_zeros
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

__all__ = ["Dana", "DanaState"]


class DanaState(WorkerState):
    """A worker's snapshot and its momentum v_w, an exponential sum of its deltas (float32, shape (n,); 0 at first)."""

    __slots__ = ("momentum",)

    def __init__(self, snapshot: NDArray[np.float32], momentum: NDArray[np.float32]) -> None:
        super().__init__(snapshot)
        self.momentum = momentum


class Dana(UpdateRule):
    """The rule `dana`; `mean_pi` is 1, `proxy_norm` that of v_w, `drift_norm` how far the expectation was off."""

    name = "dana"
    vectors_per_worker = 2
    vectors_per_run = 1
    sends_parameters = False
    known_settings = (Setting("momentum", 0.9, 0.0, 0.9999, "mu of each worker's momentum; 0 is downpour"),)

    def __init__(self, settings: Mapping[str, float]) -> None:
        super().__init__(settings)
        self._momentum = np.float32(self.settings["momentum"])
        self._run = RunVectors(self.vectors_per_run)

    def new_worker(self, parameters: NDArray[np.float32]) -> DanaState:
        """v_w is 0; s_w follows from `parameters` and what the others have."""
        state = DanaState(aligned_empty(parameters.size), aligned_zeros(parameters.size))
        self.refresh(parameters, state)
        return state

    def refresh(self, parameters: NDArray[np.float32], state: WorkerState) -> None:
        """s_w = theta + mu * V; v_w stays."""
        (total,) = self._run.of(parameters)
        np.multiply(total, self._momentum, out=state.snapshot)
        np.add(parameters, state.snapshot, out=state.snapshot)

    def forget_worker(self, state: WorkerState) -> None:
        """V <- V - v_w; v_w <- 0."""
        assert isinstance(state, DanaState)
        (total,) = self._run.of(state.momentum)
        np.subtract(total, state.momentum, out=total)
        state.momentum[:] = 0

    def _commit(
        self,
        parameters: NDArray[np.float32],
        state: WorkerState,
        delta: NDArray[np.float32],
        staleness: int,
        parallel: bool,
    ) -> Statistics:
        assert isinstance(state, DanaState)
        (total,) = self._run.of(parameters)
        partials = empty_partials(parameters.size, 3)
        kernel = _commit_parallel if parallel else _commit_serial
        kernel(parameters, state.snapshot, state.momentum, total, delta, self._momentum, partials, BLOCK)
        momentum, drift, delta_squares = totals(partials)
        return Statistics(
            mean_pi=1.0 if delta_squares else 0.0,
            blocked_fraction=0.0,
            clamped_fraction=0.0,
            proxy_norm=math.sqrt(momentum),
            drift_norm=math.sqrt(drift),
            delta_norm=math.sqrt(delta_squares),
            update_norm=math.sqrt(momentum),
        )


@arithmetic
def _update(theta, snapshot, momentum, total, delta, mu):  # type: ignore[no-untyped-def]
    drift = theta - snapshot
    rest = total - momentum
    momentum = mu * momentum + delta
    total = rest + momentum
    theta = theta + momentum
    return drift, momentum, total, theta, theta + mu * total


@block_function
def _commit_block(theta, snapshot, momenta, totals_, delta, mu, sums):  # type: ignore[no-untyped-def]
    momentum_squares = drift_squares = delta_squares = np.float64(0)
    for i in range(theta.size):
        d = delta[i]
        drift, momentum, total, new, ahead = _update(theta[i], snapshot[i], momenta[i], totals_[i], d, mu)
        momenta[i] = momentum
        totals_[i] = total
        theta[i] = new
        snapshot[i] = ahead
        momentum_squares += np.float64(momentum) * np.float64(momentum)
        drift_squares += np.float64(drift) * np.float64(drift)
        delta_squares += np.float64(d) * np.float64(d)
    sums[0] = momentum_squares
    sums[1] = drift_squares
    sums[2] = delta_squares


_SIGNATURE = (VECTOR, VECTOR, VECTOR, VECTOR, READ_ONLY_VECTOR, SCALAR, PARTIALS, INTEGER)


@driver(*_SIGNATURE, parallel=False)
def _commit_serial(theta, snapshot, momentum, total, delta, mu, partials, length):  # type: ignore[no-untyped-def]
    for block in range(partials.shape[0]):
        a, b = block * length, min((block + 1) * length, theta.size)
        _commit_block(theta[a:b], snapshot[a:b], momentum[a:b], total[a:b], delta[a:b], mu, partials[block])


@driver(*_SIGNATURE, parallel=True)
def _commit_parallel(theta, snapshot, momentum, total, delta, mu, partials, length):  # type: ignore[no-untyped-def]
    for block in prange(partials.shape[0]):
        a, b = block * length, min((block + 1) * length, theta.size)
        _commit_block(theta[a:b], snapshot[a:b], momentum[a:b], total[a:b], delta[a:b], mu, partials[block])
