"""A worker's snapshots s_w and rule state. Only the applying task writes them."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gem_core import RuleState, Statistics, UpdateRule
from gem_core.aligned import aligned_empty
from gem_server.state.buffers import NO_BUFFERS, Buffers
from gem_server.state.central_variable import CentralVariable, Published, Snapshot
from gem_server.version import Version

# Inspects theta, state, delta, staleness and eta; read-only.
Look: TypeAlias = Callable[[NDArray[np.float32], RuleState, NDArray[np.float32], int, float], None]
# Of unused snapshots.
NO_VERSION = Version(0, 0)


class WorkerSnapshots:
    """A session's snapshots: `count` is 1; or 2 with overlap, when a gradient may be of the previous one.

    Writes go to `next`, the oldest. With overlap, the newest may be streaming and must not change. `commit`,
    `move` and `refresh` may run on any thread.
    """

    __slots__ = ("_snapshots", "_state")

    def __init__(self, rule: UpdateRule, state: RuleState, version: Version, buffers: Buffers, count: int) -> None:
        self._state = state
        older = (Snapshot(aligned_empty(state.snapshot.size), NO_VERSION, NO_BUFFERS) for _ in range(count - 1))
        self._snapshots = deque((*older, Snapshot(state.snapshot, version, buffers)))

    @property
    def newest(self) -> Snapshot:
        """Of the last pull or reply."""
        return self._snapshots[-1]

    @property
    def next(self) -> Snapshot:
        """What the next commit or pull writes."""
        return self._snapshots[0]

    def has(self, version: Version) -> bool:
        """Whether a commit may have this base."""
        return version == self.newest.version or (version == self.next.version != NO_VERSION)

    def commit(
        self,
        central: CentralVariable,
        rule: UpdateRule,
        base: Version,
        delta: NDArray[np.float32],
        staleness: int,
        eta: float,
        look: Look | None = None,
    ) -> Statistics:
        """Run the rule with snapshot `base`; it writes to `next`. Then call `written`.

        The newest of two is kept: as `base`, it is copied.
        """
        target = self.next
        if target.version != base:
            if self.newest.version != base:
                raise AssertionError(f"{base} is not held")
            np.copyto(target.parameters, self.newest.parameters)
        self._state.snapshot = target.parameters
        if look is not None:
            look(central.parameters, self._state, delta, staleness, eta)
        return central.apply(rule, self._state, delta, staleness, eta)

    def refresh(self, central: CentralVariable, rule: UpdateRule) -> None:
        """Write a pull's parameters to `next`."""
        self._state.snapshot = self.next.parameters
        rule.refresh(central.parameters, self._state)

    def forget(self, rule: UpdateRule) -> None:
        """Remove the worker from the rule's run state."""
        rule.forget_worker(self._state)

    def written(self, version: Version, buffers: Buffers) -> None:
        """Make `next` the newest."""
        self.next.becomes(version, buffers)
        self._snapshots.rotate(-1)

    def move(self, places: Sequence[Published]) -> None:
        """Move to shared memory."""
        for one, place in zip(self._snapshots, places, strict=True):
            np.copyto(place.parameters, one.parameters)
            one.parameters, one.published = place.parameters, place
            if one.version != NO_VERSION:
                place.publish(one.version, one.buffers.pieces)
        self._state.snapshot = self.next.parameters  # release the old array

    def keep_newest_only(self) -> None:
        """Drop older snapshots, after a pull."""
        for one in self._snapshots:
            if one is not self.newest:
                one.will_change()
                one.version, one.buffers = NO_VERSION, NO_BUFFERS
