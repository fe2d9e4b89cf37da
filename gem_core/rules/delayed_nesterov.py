"""Delayed Nesterov: deltas are applied at once, and gathered; momentum is renewed and applied every N commits.

Liu et al., 2024, "Asynchronous Local-SGD Training for Language Modeling", arXiv 2401.09135, delayed Nesterov update.
Momentum that is renewed by each stale delta amplifies staleness; so it is renewed by the mean of N of them:

    every Nth commit                                 any other
    B     <- B + delta                               B     <- B + delta
    m     <- mu * m + B / N
    theta <- theta + (1 - c*N + c) * mu * m          theta <- theta + c * mu * m + delta / N
                   + delta / N
    B     <- 0
    s_w   <- theta                                   s_w   <- theta

elementwise, in float32. The paper has theta <- theta - eps * (...) with m and B in (pseudo-)gradients: with a constant
rate these are the same, times -eps. c in [0, 1/N] spreads the momentum's part over the commits between. N = 1 is
Nesterov momentum. m and B are of the run, not of a worker. The paper's workers make many local steps: `local_steps`, of
plain SGD where the paper takes AdamW. (To fit their number to each worker's speed, DyLU, is not the server's to do.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numba import prange, types
from numpy.typing import NDArray

from gem_core.aligned import aligned_copy
from gem_core.errors import RuleError
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
from gem_core.rules.interface import Setting, Statistics, UpdateRule, WorkerState, WorkerStep
from gem_core.rules.run_vectors import RunVectors

__all__ = ["DelayedNesterov"]


class DelayedNesterov(UpdateRule):
    """The rule `delayed-nesterov`; `mean_pi` is 1 / N, `proxy_norm` that of m."""

    name = "delayed-nesterov"
    vectors_per_worker = 1
    vectors_per_run = 2
    known_settings = (
        Setting("momentum", 0.9, 0.0, 0.9999, "mu: how long the momentum remembers"),
        Setting("delay", 4, 1, 1e6, "N: commits between two renewals of the momentum; the paper: workers", whole=True),
        Setting("activation", 0.0, 0.0, 1.0, "c: the momentum's share in the commits between, at most 1 / delay"),
        Setting("local_steps", 1, 1, 1e6, "local steps of a worker, whose sum it commits", whole=True),
    )

    def __init__(self, settings: Mapping[str, float]) -> None:
        super().__init__(settings)
        self._delay, activation = int(self.settings["delay"]), self.settings["activation"]
        if activation * self._delay > 1:
            raise RuleError(
                f"rule 'delayed-nesterov': activation = {activation:g} is above 1 / delay = {1 / self._delay:g}; "
                "lower one of them"
            )
        momentum = self.settings["momentum"]
        self._mu, self._between = np.float32(momentum), np.float32(activation * momentum)
        self._at_renewal = np.float32((1 - activation * self._delay + activation) * momentum)
        self._run = RunVectors(self.vectors_per_run)
        self._commits = 0

    @property
    def worker_step(self) -> WorkerStep:
        """`local_steps` steps, whose sum is committed."""
        return WorkerStep(int(self.settings["local_steps"]))

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
        momentum, buffer = self._run.of(parameters)
        self._commits += 1
        renews = self._commits % self._delay == 0
        share = self._at_renewal if renews else self._between
        partials = empty_partials(parameters.size, 4)
        kernel = _commit_parallel if parallel else _commit_serial
        vectors = (parameters, state.snapshot, momentum, buffer, delta)
        kernel(*vectors, self._mu, share, np.float32(self._delay), renews, partials, BLOCK)
        momentum_squares, drift, delta_squares, update = totals(partials)
        return Statistics(
            mean_pi=1.0 / self._delay if delta_squares else 0.0,
            blocked_fraction=0.0,
            clamped_fraction=0.0,
            proxy_norm=math.sqrt(momentum_squares),
            drift_norm=math.sqrt(drift),
            delta_norm=math.sqrt(delta_squares),
            update_norm=math.sqrt(update),
        )


@arithmetic
def _update(theta, snapshot, momentum, buffer, delta, mu, share, delay, renews):  # type: ignore[no-untyped-def]
    drift = theta - snapshot
    buffer = buffer + delta
    momentum = mu * momentum + buffer / delay if renews else momentum
    buffer = np.float32(0) if renews else buffer
    update = share * momentum + delta / delay
    return drift, momentum, buffer, update, theta + update


@block_function
def _commit_block(theta, snapshot, momenta, buffers, delta, mu, share, delay, renews, sums):  # type: ignore[no-untyped-def]
    momentum_squares = drift_squares = delta_squares = update_squares = np.float64(0)
    for i in range(theta.size):
        d = delta[i]
        drift, momentum, buffer, update, new = _update(
            theta[i], snapshot[i], momenta[i], buffers[i], d, mu, share, delay, renews
        )
        momenta[i] = momentum
        buffers[i] = buffer
        theta[i] = new
        snapshot[i] = new
        momentum_squares += np.float64(momentum) * np.float64(momentum)
        drift_squares += np.float64(drift) * np.float64(drift)
        delta_squares += np.float64(d) * np.float64(d)
        update_squares += np.float64(update) * np.float64(update)
    sums[0] = momentum_squares
    sums[1] = drift_squares
    sums[2] = delta_squares
    sums[3] = update_squares


_VECTORS = (VECTOR, VECTOR, VECTOR, VECTOR, READ_ONLY_VECTOR)
_SIGNATURE = (*_VECTORS, SCALAR, SCALAR, SCALAR, types.boolean, PARTIALS, INTEGER)


@driver(*_SIGNATURE, parallel=False)
def _commit_serial(theta, snapshot, momentum, buffer, delta, mu, share, delay, renews, partials, length):  # type: ignore[no-untyped-def]
    for block in range(partials.shape[0]):
        a, b = block * length, min((block + 1) * length, theta.size)
        _commit_block(
            theta[a:b], snapshot[a:b], momentum[a:b], buffer[a:b], delta[a:b], mu, share, delay, renews, partials[block]
        )


@driver(*_SIGNATURE, parallel=True)
def _commit_parallel(theta, snapshot, momentum, buffer, delta, mu, share, delay, renews, partials, length):  # type: ignore[no-untyped-def]
    for block in prange(partials.shape[0]):
        a, b = block * length, min((block + 1) * length, theta.size)
        _commit_block(
            theta[a:b], snapshot[a:b], momentum[a:b], buffer[a:b], delta[a:b], mu, share, delay, renews, partials[block]
        )
