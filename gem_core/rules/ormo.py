"""OrMo: momentum over deltas in the order of their base versions instead of arrival.

Shi, Yang and Li, 2024, arXiv 2407.19234; at commit t (from 0), with b(i) = ceil(i / K):

    u     <- mu * u,  theta <- theta + u    if b(t) > b(t - 1)
    u     <- u + mu^d * delta               d = b(t) - b(t - staleness)
    theta <- theta + (1 - mu^(d + 1)) / (1 - mu) * delta
    s_w   <- theta

Without deltas under way: momentum SGD with the sum of each K deltas.
"""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from gem_core.rules.interface import Setting, UpdateRule
from gem_core.rules.kernel import Kernel

__all__ = ["Ormo"]


def _ormo_update(theta, snapshot, momentum, delta, mu, weight, share, begins):  # type: ignore[no-untyped-def]
    momentum = mu * momentum if begins else momentum
    step = share * delta
    update = momentum + step if begins else step
    momentum = momentum + weight * delta
    theta = theta + update
    return theta, theta, momentum, update, share


class Ormo(UpdateRule):
    """Rule `ormo`; `mean_pi` is the factor of delta, `proxy_norm` |u|."""

    name = "ormo"
    kernel = Kernel(_ormo_update, proxy="momentum")
    vectors_per_run = 1
    first_scalars = MappingProxyType({"commits": 0})
    known_settings = (
        Setting("momentum", 0.9, 0.0, 0.9999, "mu: how long the momentum remembers; 0 is downpour"),
        Setting("buffer", 4, 1, 1e6, "K: deltas between two steps of the momentum; the paper: workers", whole=True),
    )

    def _scalars(self, staleness: int, eta: float) -> tuple[np.float32, ...]:
        mu, size = self.settings["momentum"], int(self.settings["buffer"])
        commits = int(self.scalars_of_run["commits"])
        self.scalars_of_run["commits"] = commits + 1
        late = -(-commits // size) + (staleness - commits) // size
        share = (1 - mu ** (late + 1)) / (1 - mu)
        begins = commits > 0 and (commits - 1) % size == 0
        return np.float32(mu), np.float32(mu**late), np.float32(share), np.float32(begins)
