"""Computes with gem_core's rule what the central variable must be after commits in a known order."""

import math

import numpy as np
from numpy.typing import NDArray

import gem_core
from tests.wire.model import Values

GEM = {"momentum": 0.9, "kappa": 1.0, "pi_min": 0.0, "pi_max": 5.0, "epsilon": 1e-12}


class Oracle:
    """theta, m_w and s_w of every worker, and the clocks that staleness is counted by."""

    def __init__(
        self,
        first: Values,
        rule: str = "gem",
        layout: gem_core.Layout | None = None,
        **settings: float,
    ) -> None:
        self.rule = gem_core.create_rule(rule, **((GEM if rule == "gem" else {}) | settings))
        if layout is not None:
            self.rule.begin(layout)
        self.parameters: NDArray[np.float32] = first.parameters.astype(np.float32)
        self.clock = 1
        self._states: dict[str, object] = {}
        self._clocks: dict[str, int] = {}

    def pull(self, worker: str) -> None:
        """A worker's pull refreshes its snapshot and leaves its moment."""
        if worker in self._states:
            self.rule.refresh(self.parameters, self._states[worker])
        else:
            self._states[worker] = self.rule.new_worker(self.parameters)
        self._clocks[worker] = self.clock

    def held(self, worker: str) -> NDArray[np.float32]:
        """What the worker was sent: theta, unless the rule sends something else."""
        return self._states[worker].snapshot

    def leave(self, worker: str) -> None:
        """The rule forgets a worker that has gone."""
        self.rule.forget_worker(self._states.pop(worker))

    def commit(self, worker: str, delta: NDArray[np.float32], eta: float = math.nan) -> tuple[int, object]:
        """Applies a delta; its staleness, and the rule's statistics."""
        staleness = self.clock - self._clocks[worker]
        state = self._states[worker]
        statistics = self.rule.commit(self.parameters, state, delta.astype(np.float32), staleness, eta)
        self.clock += 1
        self._clocks[worker] = self.clock
        return staleness, statistics
