"""FADAS: AMSGrad with the mean of K deltas.

Wang et al., 2024, arXiv 2407.18365; every Kth commit, with D = B / K of rule `fedbuff`:

    m     <- beta1 * m + (1 - beta1) * D
    v     <- beta2 * v + (1 - beta2) * D^2
    w     <- max(w, v)
    theta <- theta + rate * m / (sqrt(w) + epsilon)

B's deltas have no weights. rate: eta_o, divided by their largest tau if above tau_c.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from gem_core.rules.buffered import LOCAL_STEPS, BufferedRule
from gem_core.rules.interface import Setting
from gem_core.rules.kernel import Kernel

__all__ = ["Fadas"]


def _fadas_update(  # type: ignore[no-untyped-def]
    theta, snapshot, buffer, moment, square, largest, delta, size, keep1, fresh1, keep2, fresh2, epsilon, rate, is_full
):
    buffer = buffer + delta
    mean = buffer / size
    moment = keep1 * moment + fresh1 * mean if is_full else moment
    square = keep2 * square + fresh2 * (mean * mean) if is_full else square
    largest = square if square > largest else largest
    update = rate * (moment / (np.sqrt(largest) + epsilon)) if is_full else np.float32(0)
    theta = theta + update if is_full else theta
    buffer = np.float32(0) if is_full else buffer
    return theta, theta, buffer, moment, square, largest, update, np.float32(1) / size


class Fadas(BufferedRule):
    """Rule `fadas`; `mean_pi` is 1 / K, `proxy_norm` |m|."""

    name = "fadas"
    kernel = Kernel(_fadas_update, proxy="moment")
    vectors_per_run = 4
    first_scalars = MappingProxyType({"commits": 0, "largest_delay": 0})
    known_settings = (
        Setting("buffer", 5, 1, 1e6, "K: deltas in a buffer", whole=True),
        Setting("outer_eta", 0.001, 0.0, 1e6, "eta_o: about the largest step of an element"),
        Setting("beta1", 0.9, 0.0, 0.9999, "how long the moment remembers"),
        Setting("beta2", 0.99, 0.0, 0.999999, "how long the mean square remembers"),
        Setting("epsilon", 1e-8, 1e-30, 1.0, "added to the root of the mean square of deltas"),
        Setting("delay", 1, 0, 1e6, "tau_c: largest delay, in buffers, that does not lower the rate", whole=True),
        LOCAL_STEPS,
    )

    def __init__(self, settings: Mapping[str, float]) -> None:
        super().__init__(settings)
        chosen = self.settings
        self.size = int(chosen["buffer"])
        beta1, beta2, epsilon = (chosen[name] for name in ("beta1", "beta2", "epsilon"))
        self._constants = tuple(np.float32(one) for one in (self.size, beta1, 1 - beta1, beta2, 1 - beta2, epsilon))

    def _scalars(self, staleness: int, eta: float) -> tuple[np.float32, ...]:
        run = self.scalars_of_run
        is_full, delay = self._fill(staleness)
        largest = max(int(run["largest_delay"]), delay)
        run["largest_delay"] = 0 if is_full else largest
        rate = self.settings["outer_eta"] / (largest if largest > self.settings["delay"] else 1)
        return *self._constants, np.float32(rate), np.float32(is_full)
