"""Gradient Energy Matching: Hermans and Louppe, 2018, arXiv 1805.08469, equations 19 and 27, algorithm 1.

In this order:

    m_w   <- mu * m_w + delta
    gap   =  |theta - s_w|, or with the setting signed_gap max(0, sign(delta) * (theta - s_w))
    pi    =  clamp((kappa * |m_w| - gap) / (|delta| + epsilon), pi_min, pi_max)
    theta <- theta + pi * delta
    s_w   <- theta

Unlike the paper's, pi is computed when the delta is applied, so theta - s_w is exact. The clamp is only in the paper's
code; without its lower end, runs of five or more workers diverge. One worker is not momentum SGD: its update is
sign(delta) * min(|m|, pi_max * |delta|).

The signed gap is not in the paper. It shortens a delta only by what other workers have moved in the delta's direction
since the snapshot, because they have already made this part of the step. Movement against its direction does not
shorten it. With momentum 0, kappa 2 and pi_max 1 a delta is treated as a worker's whole step, made by its own
optimizer; if the worker is alone, the step is applied exactly where |delta| >= epsilon.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gem_core.errors import RuleError
from gem_core.rule_settings import GEM_SETTINGS, Setting
from gem_core.rules.decay import DecayingRule
from gem_core.rules.interface import RuleState, WorkerStep
from gem_core.rules.kernel import Kernel

__all__ = ["Gem"]


def _gem_update(theta, snapshot, moment, delta, mu, kappa, pi_min, pi_max, epsilon):  # type: ignore[no-untyped-def]
    moment = mu * moment + delta
    pi = (kappa * abs(moment) - abs(theta - snapshot)) / (abs(delta) + epsilon)
    pi = pi_min if pi < pi_min else pi
    pi = pi_max if pi > pi_max else pi
    update = pi * delta
    theta = theta + update
    return theta, theta, moment, update, pi


def _signed_gem_update(theta, snapshot, moment, delta, mu, kappa, pi_min, pi_max, epsilon):  # type: ignore[no-untyped-def]
    moment = mu * moment + delta
    gap = theta - snapshot
    gap = -gap if delta < np.float32(0) else gap
    gap = gap if gap > np.float32(0) else np.float32(0)
    pi = (kappa * abs(moment) - gap) / (abs(delta) + epsilon)
    pi = pi_min if pi < pi_min else pi
    pi = pi_max if pi > pi_max else pi
    update = pi * delta
    theta = theta + update
    return theta, theta, moment, update, pi


# This is a separate kernel, because one kernel for both gaps would make rule gem 3 to 6 % slower (4 million parameters,
# one thread).
_signed_kernel = Kernel(_signed_gem_update, proxy="moment")


class Gem(DecayingRule):
    """Rule `gem`. The worker's vector is its moment m_w."""

    name = "gem"
    kernel = Kernel(_gem_update, proxy="moment")
    vectors_per_worker = 2
    has_factors = True
    known_settings: ClassVar[tuple[Setting, ...]] = GEM_SETTINGS

    def __init__(self, settings: Mapping[str, float]) -> None:
        super().__init__(settings)
        chosen = self.settings
        if chosen["pi_min"] > chosen["pi_max"]:
            raise RuleError(
                f"rule 'gem': pi_min = {chosen['pi_min']:g} is above pi_max = {chosen['pi_max']:g}; exchange them"
            )
        self._constants = tuple(
            np.float32(chosen[name]) for name in ("momentum", "kappa", "pi_min", "pi_max", "epsilon")
        )
        self._limits, self._proxy_scale = self._constants[2:4], chosen["kappa"]
        self._has_signed_gap = chosen["signed_gap"] == 1
        self.kernel = _signed_kernel if self._has_signed_gap else type(self).kernel

    @property
    def worker_step(self) -> WorkerStep:
        """The worker makes `local_steps` steps, and commits the mean of their gradients."""
        count = int(self.settings["local_steps"])
        if count == 1:
            return WorkerStep()
        return WorkerStep(count, normalise=True, rate=self.settings["local_rate"])

    def factors(
        self,
        parameters: NDArray[np.float32],
        state: RuleState,
        delta: NDArray[np.float32],
        at: NDArray[np.int64] | slice,
    ) -> NDArray[np.float32] | None:
        """Pi (equation 27, clamped) of the elements `at`; meaningless where delta is 0."""
        mu, kappa, least, most, epsilon = self._constants
        (moment,), deltas = state.vectors, delta[at]
        with np.errstate(over="ignore", invalid="ignore"):  # diverging runs
            moments = mu * moment[at] + deltas
            drifts = parameters[at] - state.snapshot[at]
            gaps = np.abs(drifts)
            if self._has_signed_gap:
                gaps = np.maximum(np.where(deltas < 0, -drifts, drifts), np.float32(0))
            pi: NDArray[np.float32] = (kappa * np.abs(moments) - gaps) / (np.abs(deltas) + epsilon)
            return np.clip(pi, least, most, out=pi)

    def _scalars(self, staleness: int, eta: float) -> tuple[np.float32, ...]:
        return self._constants
