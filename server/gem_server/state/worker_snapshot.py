"""A worker's snapshot s_w and rule state. Only the applying task writes them."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gem_core import RuleState, Statistics, UpdateRule
from gem_server.state.buffers import Buffers
from gem_server.state.central_variable import CentralVariable, Published, Snapshot
from gem_server.version import Version

# A function that reads theta, the state and the delta before a commit, and changes nothing.
Look: TypeAlias = Callable[[NDArray[np.float32], RuleState, NDArray[np.float32]], None]


class WorkerSnapshot:
    """A session's snapshot, which the worker has from its last pull or reply, with the rule's state of the worker.

    `commit`, `move` and `refresh` may run on any thread. After `commit` and `refresh` call `snapshot.becomes`.
    """

    __slots__ = ("_state", "snapshot")

    def __init__(self, state: RuleState, version: Version, buffers: Buffers) -> None:
        self._state = state
        self.snapshot = Snapshot(state.snapshot, version, buffers)

    def commit(
        self,
        central: CentralVariable,
        rule: UpdateRule,
        delta: NDArray[np.float32],
        staleness: int,
        eta: float,
        decays: Sequence[float] = (),
        look: Look | None = None,
    ) -> Statistics:
        """Run the rule, which reads and then writes the snapshot."""
        if look is not None:
            look(central.parameters, self._state, delta)
        return central.apply(rule, self._state, delta, staleness, eta, decays)

    def refresh(self, central: CentralVariable, rule: UpdateRule) -> None:
        """Write a pull's parameters."""
        rule.refresh(central.parameters, self._state)

    def forget(self, rule: UpdateRule) -> None:
        """Remove the worker from the rule's run state."""
        rule.forget_worker(self._state)

    def move(self, place: Published) -> None:
        """Move the parameters into a region of shared memory, which then holds the snapshot."""
        snapshot = self.snapshot
        np.copyto(place.parameters, snapshot.parameters)
        snapshot.parameters, snapshot.published = place.parameters, place
        place.publish(snapshot.version, snapshot.buffers.pieces)
        self._state.snapshot = place.parameters
