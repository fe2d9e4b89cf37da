"""FedBuff: every Kth commit adds the mean of K deltas.

Nguyen et al., 2022, arXiv 2106.06639:

    B     <- B + delta / sqrt(1 + tau)
    theta <- theta + eta_o / K * B,  B <- 0    every Kth commit
    s_w   <- theta

tau: full buffers since the snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gem_core.rules.buffered import LOCAL_STEPS, BufferedRule
from gem_core.rules.interface import Setting
from gem_core.rules.kernel import Kernel

__all__ = ["FedBuff"]


def _fedbuff_update(theta, snapshot, buffer, delta, weight, rate, is_full):  # type: ignore[no-untyped-def]
    buffer = buffer + weight * delta
    update = rate * buffer if is_full else np.float32(0)
    theta = theta + update if is_full else theta  # keeps -0
    buffer = np.float32(0) if is_full else buffer
    return theta, theta, buffer, update, rate * weight


class FedBuff(BufferedRule):
    """Rule `fedbuff`; `mean_pi` is the factor of delta."""

    name = "fedbuff"
    kernel = Kernel(_fedbuff_update)
    vectors_per_run = 1
    known_settings = (
        Setting("buffer", 10, 1, 1e6, "K: deltas in a buffer", whole=True),
        Setting("outer_eta", 1.0, 0.0, 1e6, "eta_o: multiplies the mean of a buffer"),
        LOCAL_STEPS,
    )

    def __init__(self, settings: Mapping[str, float]) -> None:
        super().__init__(settings)
        self.size = int(self.settings["buffer"])
        self._rate = np.float32(self.settings["outer_eta"] / self.size)

    def _scalars(self, staleness: int, eta: float) -> tuple[np.float32, ...]:
        is_full, delay = self._fill(staleness)
        return np.float32((1 + delay) ** -0.5), self._rate, np.float32(is_full)
