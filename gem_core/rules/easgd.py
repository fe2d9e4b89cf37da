"""Elastic averaging, EASGD, and with momentum EAMSGD: workers have parameters of their own, tied to theta by a spring.

Zhang, Choromanska and LeCun, 2015, "Deep learning with Elastic Averaging SGD", arXiv 1412.6651, algorithms 1 and 2,
asynchronous. A worker that has made its local steps meets theta, and both give way by the same amount:

    EASGD                               EAMSGD (momentum mu > 0)
    x_w   <- s_w + delta                v_w   <- mu * v_w + delta
                                        x_w   <- x_w + v_w
    e     =  alpha * (x_w - theta)      e     =  alpha * (x_w - theta)
    theta <- theta + e                  theta <- theta + e
    x_w   <- x_w - e                    x_w   <- x_w - e
    s_w   <- x_w                        s_w   <- x_w + mu * v_w

elementwise, in float32, in this order. What is sent back is s_w: the worker's own parameters, and with momentum those
where Nesterov's next gradient is taken. A worker that pulls begins anew at theta; v_w stays.

Where it departs from the paper: there a worker takes the gradient of a step at x_w, and applies it to what the exchange
in the same step has made of x_w. Here it gets x_w after the exchange first, as in the code of dist-keras. Local steps
are the paper's communication period tau, for EASGD: a worker commits the sum of their deltas. EAMSGD's momentum lives
in every local step, and is kept here, so it needs a period of 1. The paper's alpha is 0.9 over the number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numba import prange
from numpy.typing import NDArray

from gem_core.aligned import aligned_copy, aligned_empty, aligned_zeros
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

__all__ = ["EamsgdState", "Easgd"]


class EamsgdState(WorkerState):
    """With momentum: a worker's snapshot, its own parameters x_w, its velocity v_w (float32, shape (n,); first 0)."""

    __slots__ = ("position", "velocity")

    def __init__(
        self, snapshot: NDArray[np.float32], position: NDArray[np.float32], velocity: NDArray[np.float32]
    ) -> None:
        super().__init__(snapshot)
        self.position = position
        self.velocity = velocity


class Easgd(UpdateRule):
    """The rule `easgd`; `mean_pi` is alpha. `proxy_norm` is that of v_w."""

    name = "easgd"
    sends_parameters = False
    known_settings = (
        Setting(
            "alpha", 0.1, 0.0, 1.0, "the spring's strength; the paper takes 0.9 / workers, 0 leaves theta as it is"
        ),
        Setting("momentum", 0.0, 0.0, 0.9999, "mu of the worker's own steps; above 0 this is EAMSGD"),
        Setting("period", 1, 1, 1e6, "tau: local steps between two exchanges; with momentum 1", whole=True),
    )

    def __init__(self, settings: Mapping[str, float]) -> None:
        super().__init__(settings)
        self._alpha, self._momentum = np.float32(self.settings["alpha"]), np.float32(self.settings["momentum"])
        if self._momentum and self.settings["period"] > 1:
            raise RuleError(
                f"rule 'easgd': momentum = {self.settings['momentum']:g} needs period = 1, because momentum belongs "
                "into each local step and is kept by the server: set one of the two back"
            )
        self.vectors_per_worker = 3 if self._momentum else 1

    @property
    def worker_step(self) -> WorkerStep:
        """`period` local steps, whose sum is committed."""
        return WorkerStep(int(self.settings["period"]))

    def new_worker(self, parameters: NDArray[np.float32]) -> WorkerState:
        """x_w is a copy of `parameters`, v_w is 0."""
        if not self._momentum:
            return WorkerState(aligned_copy(parameters))
        state = EamsgdState(
            aligned_empty(parameters.size), aligned_empty(parameters.size), aligned_zeros(parameters.size)
        )
        self.refresh(parameters, state)
        return state

    def refresh(self, parameters: NDArray[np.float32], state: WorkerState) -> None:
        """x_w becomes a copy of `parameters`; s_w follows from it and v_w."""
        if isinstance(state, EamsgdState):
            np.copyto(state.position, parameters)
            np.multiply(state.velocity, self._momentum, out=state.snapshot)
            np.add(state.position, state.snapshot, out=state.snapshot)
        else:
            np.copyto(state.snapshot, parameters)

    def _commit(
        self,
        parameters: NDArray[np.float32],
        state: WorkerState,
        delta: NDArray[np.float32],
        staleness: int,
        parallel: bool,
    ) -> Statistics:
        partials = empty_partials(parameters.size, 4)
        if isinstance(state, EamsgdState):
            kernel = _momentum_parallel if parallel else _momentum_serial
            vectors = (parameters, state.snapshot, state.position, state.velocity, delta)
            kernel(*vectors, self._alpha, self._momentum, partials, BLOCK)
        else:
            kernel = _elastic_parallel if parallel else _elastic_serial
            kernel(parameters, state.snapshot, delta, self._alpha, partials, BLOCK)
        velocity, drift, delta_squares, update = totals(partials)
        return Statistics(
            mean_pi=float(self._alpha) if delta_squares else 0.0,
            blocked_fraction=0.0,
            clamped_fraction=0.0,
            proxy_norm=math.sqrt(velocity),
            drift_norm=math.sqrt(drift),
            delta_norm=math.sqrt(delta_squares),
            update_norm=math.sqrt(update),
        )


@arithmetic
def _exchange(theta, position, alpha):  # type: ignore[no-untyped-def]
    elastic = alpha * (position - theta)
    return elastic, theta + elastic, position - elastic


@arithmetic
def _elastic_update(theta, snapshot, delta, alpha):  # type: ignore[no-untyped-def]
    elastic, new, position = _exchange(theta, snapshot + delta, alpha)
    return theta - snapshot, elastic, new, position


@arithmetic
def _momentum_update(theta, snapshot, position, velocity, delta, alpha, mu):  # type: ignore[no-untyped-def]
    velocity = mu * velocity + delta
    elastic, new, position = _exchange(theta, position + velocity, alpha)
    return theta - snapshot, elastic, new, position, velocity, position + mu * velocity


@block_function
def _elastic_block(theta, snapshot, delta, alpha, sums):  # type: ignore[no-untyped-def]
    drift_squares = delta_squares = update_squares = np.float64(0)
    for i in range(theta.size):
        d = delta[i]
        drift, elastic, new, position = _elastic_update(theta[i], snapshot[i], d, alpha)
        theta[i] = new
        snapshot[i] = position
        drift_squares += np.float64(drift) * np.float64(drift)
        delta_squares += np.float64(d) * np.float64(d)
        update_squares += np.float64(elastic) * np.float64(elastic)
    sums[0] = 0
    sums[1] = drift_squares
    sums[2] = delta_squares
    sums[3] = update_squares


@block_function
def _momentum_block(theta, snapshot, positions, velocities, delta, alpha, mu, sums):  # type: ignore[no-untyped-def]
    velocity_squares = drift_squares = delta_squares = update_squares = np.float64(0)
    for i in range(theta.size):
        d = delta[i]
        drift, elastic, new, position, velocity, sent = _momentum_update(
            theta[i], snapshot[i], positions[i], velocities[i], d, alpha, mu
        )
        theta[i] = new
        positions[i] = position
        velocities[i] = velocity
        snapshot[i] = sent
        velocity_squares += np.float64(velocity) * np.float64(velocity)
        drift_squares += np.float64(drift) * np.float64(drift)
        delta_squares += np.float64(d) * np.float64(d)
        update_squares += np.float64(elastic) * np.float64(elastic)
    sums[0] = velocity_squares
    sums[1] = drift_squares
    sums[2] = delta_squares
    sums[3] = update_squares


_ELASTIC = (VECTOR, VECTOR, READ_ONLY_VECTOR, SCALAR, PARTIALS, INTEGER)
_MOMENTUM = (VECTOR, VECTOR, VECTOR, VECTOR, READ_ONLY_VECTOR, SCALAR, SCALAR, PARTIALS, INTEGER)


@driver(*_ELASTIC, parallel=False)
def _elastic_serial(theta, snapshot, delta, alpha, partials, length):  # type: ignore[no-untyped-def]
    for block in range(partials.shape[0]):
        a, b = block * length, min((block + 1) * length, theta.size)
        _elastic_block(theta[a:b], snapshot[a:b], delta[a:b], alpha, partials[block])


@driver(*_ELASTIC, parallel=True)
def _elastic_parallel(theta, snapshot, delta, alpha, partials, length):  # type: ignore[no-untyped-def]
    for block in prange(partials.shape[0]):
        a, b = block * length, min((block + 1) * length, theta.size)
        _elastic_block(theta[a:b], snapshot[a:b], delta[a:b], alpha, partials[block])


@driver(*_MOMENTUM, parallel=False)
def _momentum_serial(theta, snapshot, position, velocity, delta, alpha, mu, partials, length):  # type: ignore[no-untyped-def]
    for block in range(partials.shape[0]):
        a, b = block * length, min((block + 1) * length, theta.size)
        _momentum_block(theta[a:b], snapshot[a:b], position[a:b], velocity[a:b], delta[a:b], alpha, mu, partials[block])


@driver(*_MOMENTUM, parallel=True)
def _momentum_parallel(theta, snapshot, position, velocity, delta, alpha, mu, partials, length):  # type: ignore[no-untyped-def]
    for block in prange(partials.shape[0]):
        a, b = block * length, min((block + 1) * length, theta.size)
        _momentum_block(theta[a:b], snapshot[a:b], position[a:b], velocity[a:b], delta[a:b], alpha, mu, partials[block])
