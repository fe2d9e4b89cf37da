"""Ringmaster ASGD: drop old deltas.

Maranjyan, Tyurin and Richtarik, 2025, arXiv 2501.16168:

    theta <- theta + delta    if delay < R
    s_w   <- theta

delay: staleness without dropped deltas. `mean_pi` is 0 for dropped commits (blocked), else 1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from gem_core.rules.interface import Setting, UpdateRule
from gem_core.rules.kernel import Kernel

__all__ = ["Ringmaster"]


def _ringmaster_update(theta, snapshot, delta, factor):  # type: ignore[no-untyped-def]
    is_fresh = factor != np.float32(0)
    theta = theta + delta if is_fresh else theta  # keeps -0
    return theta, theta, delta if is_fresh else np.float32(0), factor


class Ringmaster(UpdateRule):
    """Rule `ringmaster`."""

    name = "ringmaster"
    kernel = Kernel(_ringmaster_update)
    known_settings: ClassVar[tuple[Setting, ...]] = (
        Setting("threshold", 16, 1, 1e6, "R: a delta with this many updates since its snapshot is dropped", whole=True),
    )
    _limits = (np.float32(0), np.float32(np.nan))

    def __init__(self, settings: Mapping[str, float]) -> None:
        super().__init__(settings)
        self._commits = 0
        # The last R applied commits; delay < R unless all came after the snapshot.
        self._applied: deque[int] = deque(maxlen=int(self.settings["threshold"]))

    def _scalars(self, staleness: int, eta: float) -> tuple[np.float32, ...]:
        is_full = len(self._applied) == self._applied.maxlen
        is_fresh = not is_full or self._applied[0] <= self._commits - staleness
        self._commits += 1
        if is_fresh:
            self._applied.append(self._commits)
        return (np.float32(is_fresh),)
