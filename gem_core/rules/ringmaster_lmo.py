"""Ringmaster LMO: sign steps along a momentum of fresh deltas.

Sadiev et al., 2026, arXiv 2605.18174, in the maximum norm (others need whole tensors), with mu = 1 - alpha:

    m     <- mu * m + (1 - mu) * delta    if delay < R
    theta <- theta + eta * sign(m)        if delay < R
    s_w   <- theta
"""

from __future__ import annotations

import numpy as np

from gem_core.rules.interface import Setting
from gem_core.rules.kernel import Kernel
from gem_core.rules.ringmaster import Ringmaster

__all__ = ["RingmasterLmo"]


def _ringmaster_lmo_update(theta, snapshot, moment, delta, keep, fresh, eta, factor):  # type: ignore[no-untyped-def]
    is_fresh = factor != np.float32(0)
    moment = keep * moment + fresh * delta if is_fresh else moment
    update = eta if moment > np.float32(0) else np.float32(0)
    update = -eta if moment < np.float32(0) else update
    update = update if is_fresh else np.float32(0)
    theta = theta + update if is_fresh else theta
    return theta, theta, moment, update, factor


class RingmasterLmo(Ringmaster):
    """Rule `ringmaster-lmo`; `mean_pi` as of `ringmaster`, `proxy_norm` |m|."""

    name = "ringmaster-lmo"
    kernel = Kernel(_ringmaster_lmo_update, proxy="moment")
    vectors_per_run = 1
    needs_eta = True
    known_settings = (
        *Ringmaster.known_settings,
        Setting("momentum", 0.9, 0.0, 0.9999, "mu: how long the momentum remembers"),
    )

    def _scalars(self, staleness: int, eta: float) -> tuple[np.float32, ...]:
        mu = self.settings["momentum"]
        return np.float32(mu), np.float32(1 - mu), np.float32(eta), *super()._scalars(staleness, eta)
