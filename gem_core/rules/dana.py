"""DANA: per-worker momentum, and gradients at the predicted theta.

Hakimi, Barkai, Gabel and Schuster, 2019, arXiv 1907.11612, DANA-Zero:

    V     <- V - v_w
    v_w   <- mu * v_w + delta
    V     <- V + v_w            the sum over all workers
    theta <- theta + v_w
    s_w   <- theta + mu * V
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gem_core.rules.interface import RuleState, Setting, UpdateRule
from gem_core.rules.kernel import Kernel

__all__ = ["Dana"]


def _dana_update(theta, snapshot, momentum, total, delta, mu):  # type: ignore[no-untyped-def]
    rest = total - momentum
    momentum = mu * momentum + delta
    total = rest + momentum
    theta = theta + momentum
    return theta, theta + mu * total, momentum, total, momentum, np.float32(1)


class Dana(UpdateRule):
    """Rule `dana`; `mean_pi` is 1, `proxy_norm` |v_w|, `drift_norm` the prediction error."""

    name = "dana"
    kernel = Kernel(_dana_update, proxy="momentum")
    vectors_per_worker = 2
    vectors_per_run = 1
    keeps_run = False  # V is a sum of workers' momenta
    sends_parameters = False
    known_settings = (Setting("momentum", 0.9, 0.0, 0.9999, "mu of each worker's momentum; 0 is downpour"),)

    def __init__(self, settings: Mapping[str, float]) -> None:
        super().__init__(settings)
        self._momentum = np.float32(self.settings["momentum"])

    def new_worker(self, parameters: NDArray[np.float32]) -> RuleState:
        """Start with v_w = 0 and s_w = theta + mu * V."""
        state = super().new_worker(parameters)
        self.refresh(parameters, state)
        return state

    def refresh(self, parameters: NDArray[np.float32], state: RuleState) -> None:
        """Set s_w = theta + mu * V; v_w stays."""
        (total,) = self.vectors_of_run(parameters)
        np.multiply(total, self._momentum, out=state.snapshot)
        np.add(parameters, state.snapshot, out=state.snapshot)

    def forget_worker(self, state: RuleState) -> None:
        """V <- V - v_w; v_w <- 0."""
        (momentum,) = state.vectors
        (total,) = self.vectors_of_run(momentum)
        np.subtract(total, momentum, out=total)
        momentum[:] = 0

    def _scalars(self, staleness: int, eta: float) -> tuple[np.float32, ...]:
        return (self._momentum,)
