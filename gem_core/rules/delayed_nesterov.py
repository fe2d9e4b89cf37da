"""Delayed Nesterov: deltas are applied at once, momentum every N commits.

Liu et al., 2024, arXiv 2401.09135:

    every Nth commit                                 any other
    B     <- B + delta                               B     <- B + delta
    m     <- mu * m + B / N
    theta <- theta + (1 - c*N + c) * mu * m          theta <- theta + c * mu * m + delta / N
                   + delta / N
    B     <- 0
    s_w   <- theta                                   s_w   <- theta

c in [0, 1/N]. m and B belong to the run.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gem_core.errors import RuleError
from gem_core.rules.buffered import LOCAL_STEPS, BufferedRule
from gem_core.rules.interface import Setting
from gem_core.rules.kernel import Kernel

__all__ = ["DelayedNesterov"]


def _delayed_nesterov_update(theta, snapshot, momentum, buffer, delta, mu, share, delay, renews):  # type: ignore[no-untyped-def]
    buffer = buffer + delta
    momentum = mu * momentum + buffer / delay if renews else momentum
    buffer = np.float32(0) if renews else buffer
    update = share * momentum + delta / delay
    theta = theta + update
    return theta, theta, momentum, buffer, update, np.float32(1) / delay


class DelayedNesterov(BufferedRule):
    """Rule `delayed-nesterov`; `mean_pi` is 1 / N, `proxy_norm` is |m|."""

    name = "delayed-nesterov"
    kernel = Kernel(_delayed_nesterov_update, proxy="momentum")
    vectors_per_run = 2
    known_settings = (
        Setting("momentum", 0.9, 0.0, 0.9999, "mu: how long the momentum remembers"),
        Setting("delay", 4, 1, 1e6, "N: commits between two renewals of the momentum; the paper: workers", whole=True),
        Setting("activation", 0.0, 0.0, 1.0, "c: the momentum's share in the commits between, at most 1 / delay"),
        LOCAL_STEPS,
    )

    def __init__(self, settings: Mapping[str, float]) -> None:
        super().__init__(settings)
        self.size, activation = int(self.settings["delay"]), self.settings["activation"]
        if activation * self.size > 1:
            raise RuleError(
                f"rule 'delayed-nesterov': activation = {activation:g} is above 1 / delay = {1 / self.size:g}; "
                "lower one of them"
            )
        momentum = self.settings["momentum"]
        self._mu, self._between = np.float32(momentum), np.float32(activation * momentum)
        self._at_renewal = np.float32((1 - activation * self.size + activation) * momentum)

    def _scalars(self, staleness: int, eta: float) -> tuple[np.float32, ...]:
        renews, _ = self._fill(staleness)
        share = self._at_renewal if renews else self._between
        return self._mu, share, np.float32(self.size), np.float32(renews)
