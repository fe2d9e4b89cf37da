"""Elastic averaging: EASGD, and EAMSGD with momentum.

Zhang, Choromanska and LeCun, 2015, arXiv 1412.6651, algorithms 1 and 2, asynchronous; in this order:

    EASGD                               EAMSGD (momentum mu > 0)
    x_w   <- s_w + delta                v_w   <- mu * v_w + delta
                                        x_w   <- x_w + v_w
    e     =  alpha * (x_w - theta)      e     =  alpha * (x_w - theta)
    theta <- theta + e                  theta <- theta + e
    x_w   <- x_w - e                    x_w   <- x_w - e
    s_w   <- x_w                        s_w   <- x_w + mu * v_w

Period tau: local steps, summed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gem_core.errors import RuleError
from gem_core.rules.interface import RuleState, Setting, UpdateRule, WorkerStep
from gem_core.rules.kernel import Kernel

__all__ = ["Easgd"]


def _easgd_update(theta, snapshot, delta, alpha):  # type: ignore[no-untyped-def]
    position = snapshot + delta
    elastic = alpha * (position - theta)
    return theta + elastic, position - elastic, elastic, alpha


def _momentum_update(theta, snapshot, position, velocity, delta, alpha, mu):  # type: ignore[no-untyped-def]
    velocity = mu * velocity + delta
    position = position + velocity
    elastic = alpha * (position - theta)
    position = position - elastic
    return theta + elastic, position + mu * velocity, position, velocity, elastic, alpha


_WITH_MOMENTUM = Kernel(_momentum_update, proxy="velocity")


class Easgd(UpdateRule):
    """Rule `easgd`; `mean_pi` is alpha. With momentum a worker has x_w and v_w, and `proxy_norm` is |v_w|."""

    name = "easgd"
    kernel = Kernel(_easgd_update)
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
        self._momentum = np.float32(self.settings["momentum"])
        if self._momentum and self.settings["period"] > 1:
            raise RuleError(
                f"rule 'easgd': momentum = {self.settings['momentum']:g} needs period = 1, because momentum belongs "
                "into each local step and is kept by the server: set one of the two back"
            )
        self._constants: tuple[np.float32, ...] = (np.float32(self.settings["alpha"]),)
        if self._momentum:
            self.kernel, self.vectors_per_worker = _WITH_MOMENTUM, 3
            self._constants += (self._momentum,)

    @property
    def worker_step(self) -> WorkerStep:
        """`period` local steps, summed."""
        return WorkerStep(int(self.settings["period"]))

    def new_worker(self, parameters: NDArray[np.float32]) -> RuleState:
        """Start with x_w = theta and v_w = 0."""
        state = super().new_worker(parameters)
        self.refresh(parameters, state)
        return state

    def refresh(self, parameters: NDArray[np.float32], state: RuleState) -> None:
        """Set x_w = theta and recompute s_w; v_w stays."""
        if self._momentum:
            position, velocity = state.vectors
            np.copyto(position, parameters)
            np.multiply(velocity, self._momentum, out=state.snapshot)
            np.add(position, state.snapshot, out=state.snapshot)
        else:
            np.copyto(state.snapshot, parameters)

    def _scalars(self, staleness: int, eta: float) -> tuple[np.float32, ...]:
        return self._constants
