"""Ringmaster ASGD: a delta that is too old is dropped, and its worker goes on from theta as it is.

Maranjyan, Tyurin and Richtarik, 2025, "Ringmaster ASGD: The First Asynchronous SGD with Optimal Time Complexity", arXiv
2501.16168, without its calculation stops (stopping a computation is not the server's to do):

    theta <- theta + delta    if delay < R
    s_w   <- theta

The delay is what the paper's k counts: updates that were applied since the worker's snapshot. A dropped delta is none,
so the delay is less than the staleness, which counts commits, where some of those were dropped.

`mean_pi` is 1 for an applied commit, and 0 for one that was dropped, which also counts as blocked.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

import numpy as np
from numba import prange, types
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
from gem_core.rules.interface import Setting, Statistics, UpdateRule, WorkerState

__all__ = ["Ringmaster"]


class Ringmaster(UpdateRule):
    """The rule `ringmaster`: theta += delta while the delay is below the threshold R."""

    name = "ringmaster"
    vectors_per_worker = 1
    known_settings = (
        Setting("threshold", 16, 1, 1e6, "R: a delta with so many updates since its snapshot is dropped", whole=True),
    )

    def __init__(self, settings: Mapping[str, float]) -> None:
        super().__init__(settings)
        self._commits = 0
        # Which of all commits the last R applied ones were. The delay is below R unless all of them came after the
        # snapshot: so no longer memory is needed, however old a snapshot is.
        self._applied: deque[int] = deque(maxlen=int(self.settings["threshold"]))

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
        is_full = len(self._applied) == self._applied.maxlen
        is_fresh = not is_full or self._applied[0] <= self._commits - staleness
        self._commits += 1
        if is_fresh:
            self._applied.append(self._commits)
        partials = empty_partials(parameters.size, 2)
        kernel = _commit_parallel if parallel else _commit_serial
        kernel(parameters, state.snapshot, delta, is_fresh, partials, BLOCK)
        drift, delta_squares = totals(partials)
        delta_norm = math.sqrt(delta_squares)
        return Statistics(
            mean_pi=1.0 if is_fresh and delta_norm else 0.0,
            blocked_fraction=1.0 if not is_fresh and delta_norm else 0.0,
            clamped_fraction=0.0,
            proxy_norm=0.0,
            drift_norm=math.sqrt(drift),
            delta_norm=delta_norm,
            update_norm=delta_norm if is_fresh else 0.0,
        )


@arithmetic
def _update(theta, snapshot, delta, is_fresh):  # type: ignore[no-untyped-def]
    return theta - snapshot, theta + delta if is_fresh else theta


@block_function
def _commit_block(theta, snapshot, delta, is_fresh, sums):  # type: ignore[no-untyped-def]
    drift_squares = delta_squares = np.float64(0)
    for i in range(theta.size):
        d = delta[i]
        drift, new = _update(theta[i], snapshot[i], d, is_fresh)
        theta[i] = new
        snapshot[i] = new
        drift_squares += np.float64(drift) * np.float64(drift)
        delta_squares += np.float64(d) * np.float64(d)
    sums[0] = drift_squares
    sums[1] = delta_squares


_SIGNATURE = (VECTOR, VECTOR, READ_ONLY_VECTOR, types.boolean, PARTIALS, INTEGER)


@driver(*_SIGNATURE, parallel=False)
def _commit_serial(theta, snapshot, delta, is_fresh, partials, length):  # type: ignore[no-untyped-def]
    for block in range(partials.shape[0]):
        a, b = block * length, min((block + 1) * length, theta.size)
        _commit_block(theta[a:b], snapshot[a:b], delta[a:b], is_fresh, partials[block])


@driver(*_SIGNATURE, parallel=True)
def _commit_parallel(theta, snapshot, delta, is_fresh, partials, length):  # type: ignore[no-untyped-def]
    for block in prange(partials.shape[0]):
        a, b = block * length, min((block + 1) * length, theta.size)
        _commit_block(theta[a:b], snapshot[a:b], delta[a:b], is_fresh, partials[block])
