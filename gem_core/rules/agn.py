"""Accumulated gradient normalization: a worker explores by local steps, and commits their mean instead of their sum.

Hermans, Spanakis and Moeckel, 2017, "Accumulated Gradient Normalization", arXiv 1710.02368, by the first author of GEM.
A worker makes lambda local steps of SGD from the parameters that it holds, and what it commits is

    delta = -eta / lambda * (the sum of the gradients on the way)

which the server adds: theta <- theta + delta. So the worker's part (`worker_step`) is all there is to it, and the
server does what DOWNPOUR does. With lambda = 1 it is DOWNPOUR.
"""

from __future__ import annotations

from gem_core.rules.downpour import Downpour
from gem_core.rules.interface import Setting, WorkerStep

__all__ = ["Agn"]


class Agn(Downpour):
    """The rule `agn`: theta += delta, of workers that commit the mean of their local steps."""

    name = "agn"
    known_settings = (
        Setting("local_steps", 10, 1, 1e6, "lambda: local steps of a worker between two commits", whole=True),
    )

    @property
    def worker_step(self) -> WorkerStep:
        """`local_steps` steps, whose mean is committed."""
        return WorkerStep(int(self.settings["local_steps"]), normalise=True)
