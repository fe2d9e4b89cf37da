"""Gap-Aware: a delta counts the less the further the parameters have moved since it was computed, element by element.

Barkai, Hakimi and Schuster, 2020, "Gap Aware Mitigation of Gradient Staleness", arXiv 1909.10802, without its momentum.
The gap is a distance, in steps: what lies between theta and the worker's parameters, divided by the size C of an
average step. As the authors' group has it in code (FTPipe, `sgd_gap_aware.py`, where the average is a root of a mean
square, corrected for its start at 0), with g the gradient:

    V <- G * V + (1 - G) * g^2
    C =  eta_max * (sqrt(V / (1 - G^t)) + 1e-8)
    g <- g / (1 + |theta - s_w| / C)

In deltas, elementwise, in float32, in this order, with t the commits so far, this one included:

    q     <- G * q + (1 - G) * delta^2
    step  =  sqrt(q / (1 - G^t)) + epsilon
    theta <- theta + delta / (1 + |theta - s_w| / step)
    s_w   <- theta

q is one for the run, and eta^2 times V: for a constant eta the same, with epsilon = eta * 1e-8, which is what the
default is for eta 0.05. With an eta that falls, q follows it within some 1 / (1 - G) commits, where C keeps the
largest. Where nothing has moved, delta is applied as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gem_core.rules.interface import Setting, UpdateRule
from gem_core.rules.kernel import Kernel

__all__ = ["GapAware"]


def _update(theta, snapshot, mean_square, delta, keep, fresh, bias, epsilon):  # type: ignore[no-untyped-def]
    one = np.float32(1)
    mean_square = keep * mean_square + fresh * (delta * delta)
    penalty = one + abs(theta - snapshot) / (np.sqrt(mean_square / bias) + epsilon)
    update = delta / penalty
    theta = theta + update
    return theta, theta, mean_square, update, one / penalty


class GapAware(UpdateRule):
    """The rule `gap-aware`; `mean_pi` is the mean of 1 / (1 + gap)."""

    name = "gap-aware"
    kernel = Kernel(_update)
    vectors_per_run = 1
    known_settings = (
        Setting("decay", 0.999, 0.0, 0.999999, "G: how long the average step remembers"),
        Setting("epsilon", 5e-10, 1e-30, 1.0, "added to the average step: eta times 1e-8"),
    )

    def __init__(self, settings: Mapping[str, float]) -> None:
        super().__init__(settings)
        self._commits = 0

    def _scalars(self, staleness: int) -> tuple[np.float32, ...]:
        self._commits += 1
        decay = self.settings["decay"]
        values = (decay, 1 - decay, 1 - decay**self._commits, self.settings["epsilon"])
        return tuple(np.float32(value) for value in values)
