"""ACE: add the mean of all workers' latest deltas, so that frequent workers have no larger share.

Chang et al., 2025, arXiv 2511.19066:

    U     <- (U - u_w) + delta
    u_w   <- delta
    theta <- theta + U / n
    s_w   <- theta

n: live workers that have committed. The paper first collects a gradient of each.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gem_core.rules.interface import RuleState, Statistics, UpdateRule
from gem_core.rules.kernel import Kernel

__all__ = ["Ace"]


def _ace_update(theta, snapshot, latest, total, delta, workers):  # type: ignore[no-untyped-def]
    total = (total - latest) + delta
    update = total / workers
    theta = theta + update
    return theta, theta, delta, total, update, np.float32(1) / workers


class _AceState(RuleState):
    """`counts`: its delta is in U."""

    __slots__ = ("counts",)

    def __init__(self, state: RuleState) -> None:
        super().__init__(state.snapshot, state.vectors)
        self.counts = False


class Ace(UpdateRule):
    """Rule `ace`; `mean_pi` is 1 / n."""

    name = "ace"
    kernel = Kernel(_ace_update)
    vectors_per_worker = 2
    vectors_per_run = 1
    keeps_run = False  # as in dana.py

    def __init__(self, settings: Mapping[str, float]) -> None:
        super().__init__(settings)
        self._workers = 0

    def new_worker(self, parameters: NDArray[np.float32]) -> RuleState:
        """Start with u_w = 0."""
        return _AceState(super().new_worker(parameters))

    def forget_worker(self, state: RuleState) -> None:
        """U <- U - u_w; u_w <- 0."""
        assert isinstance(state, _AceState)
        if state.counts:
            (latest,) = state.vectors
            (total,) = self.vectors_of_run(latest)
            self._workers -= 1
            np.subtract(total, latest, out=total)
            if not self._workers:
                total[:] = 0  # without rounding errors
            latest[:] = 0
            state.counts = False

    def _commit(
        self,
        parameters: NDArray[np.float32],
        state: RuleState,
        delta: NDArray[np.float32],
        staleness: int,
        eta: float,
        parallel: bool,
    ) -> Statistics:
        assert isinstance(state, _AceState)
        self._workers += not state.counts
        state.counts = True
        return super()._commit(parameters, state, delta, staleness, eta, parallel)

    def _scalars(self, staleness: int, eta: float) -> tuple[np.float32, ...]:
        return (np.float32(self._workers),)
