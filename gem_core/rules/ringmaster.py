"""Ringmaster ASGD: a delta that is too old is dropped, and its worker goes on from theta as it is.

Maranjyan, Tyurin and Richtarik, 2025, "Ringmaster ASGD: The First Asynchronous SGD with Optimal Time Complexity", arXiv
2501.16168, without its calculation stops (stopping a computation is not the server's to do):

    theta <- theta + delta    if delay < R
    s_w   <- theta

The delay is what the paper's k counts: updates that were applied since the worker's snapshot. A dropped delta is none,
so the delay is less than the staleness, which counts commits, where some of those were dropped.

`mean_pi` is 1 for an applied commit, and 0 for one that was dropped, which also counts as blocked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np

from gem_core.rules.interface import Setting, UpdateRule
from gem_core.rules.kernel import Kernel

__all__ = ["Ringmaster"]


def _update(theta, snapshot, delta, factor):  # type: ignore[no-untyped-def]
    is_fresh = factor != np.float32(0)
    theta = theta + delta if is_fresh else theta  # a -0 stays
    return theta, theta, delta if is_fresh else np.float32(0), factor


class Ringmaster(UpdateRule):
    """The rule `ringmaster`: theta += delta while the delay is below the threshold R."""

    name = "ringmaster"
    kernel = Kernel(_update)
    known_settings = (
        Setting("threshold", 16, 1, 1e6, "R: a delta with so many updates since its snapshot is dropped", whole=True),
    )
    _limits = (np.float32(0), np.float32(np.nan))

    def __init__(self, settings: Mapping[str, float]) -> None:
        super().__init__(settings)
        self._commits = 0
        # Which of all commits the last R applied ones were. The delay is below R unless all of them came after the
        # snapshot: so no longer memory is needed, however old a snapshot is.
        self._applied: deque[int] = deque(maxlen=int(self.settings["threshold"]))

    def _scalars(self, staleness: int) -> tuple[np.float32, ...]:
        is_full = len(self._applied) == self._applied.maxlen
        is_fresh = not is_full or self._applied[0] <= self._commits - staleness
        self._commits += 1
        if is_fresh:
            self._applied.append(self._commits)
        return (np.float32(is_fresh),)
