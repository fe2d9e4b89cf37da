"""Accumulated gradient normalization: a worker commits the mean of its local steps.

Hermans, Spanakis and Moeckel, 2017, arXiv 1710.02368:

    delta =  -eta / lambda * (sum of the gradients of lambda local SGD steps)
    theta <- theta + delta

lambda = 1 is DOWNPOUR.
"""

from __future__ import annotations

from gem_core.rules.downpour import Downpour
from gem_core.rules.interface import Setting, WorkerStep

__all__ = ["Agn"]


class Agn(Downpour):
    """Rule `agn`."""

    name = "agn"
    known_settings = (
        Setting("local_steps", 10, 1, 1e6, "lambda: local steps of a worker between two commits", whole=True),
    )

    @property
    def worker_step(self) -> WorkerStep:
        """`local_steps` steps, normalised."""
        return WorkerStep(int(self.settings["local_steps"]), normalise=True)
