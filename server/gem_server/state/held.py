"""What one worker holds, as the server keeps it: the snapshots s_w that its gradients can be of, and the rule's state.

Without overlap that is one snapshot, which each commit makes the newest. A worker that overlaps computes its next
gradient while a commit is in flight, at the parameters that it had before that commit's reply: so there are two, the
newest and the one before, and both can be what a commit's gradient was computed at. The moment is one.

Knows arrays and versions. Refuses to know sessions, queues and the wire. The applying task alone writes it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gem_core import Statistics, UpdateRule, WorkerState
from gem_core.aligned import aligned_empty
from gem_server.state.central_variable import CentralVariable, Published, Snapshot, Version

# Looks at what the rule is about to be given (theta, the worker's state, delta), and changes nothing.
Look: TypeAlias = Callable[[NDArray[np.float32], WorkerState, NDArray[np.float32]], None]
# Of a snapshot that no gradient can be of; incarnations begin at 1.
NO_VERSION = Version(0, 0)


class Held:
    """The snapshots of one session: `count` is 1, or 2 with overlap. Made when the first one is read, with m = 0.

    Arrays rotate; none is made anew, but when all move to shared memory. What is written is always the oldest, `next`;
    with overlap that is never the newest, which may still be on its way to the worker.
    """

    __slots__ = ("_snapshots", "_state")

    def __init__(self, state: WorkerState, version: Version, buffers: bytes, count: int) -> None:
        self._state = state
        older = (Snapshot(aligned_empty(state.snapshot.size), NO_VERSION, b"") for _ in range(count - 1))
        self._snapshots = deque((*older, Snapshot(state.snapshot, version, buffers)))

    @property
    def newest(self) -> Snapshot:
        """That of the last completed pull or reply."""
        return self._snapshots[-1]

    @property
    def next(self) -> Snapshot:
        """The one that the next commit or pull writes."""
        return self._snapshots[0]

    def has(self, version: Version) -> bool:
        """Whether a commit may name it as its base."""
        return version in [one.version for one in self._snapshots] and version != NO_VERSION

    def commit(
        self,
        central: CentralVariable,
        rule: UpdateRule,
        base: Version,
        delta: NDArray[np.float32],
        staleness: int,
        look: Look | None = None,
    ) -> Statistics:
        """Run the rule with s = the snapshot of version `base`; what the worker gets is then in `next`.

        `written` settles that.

        Where `base` is not the oldest version that is left, it is the newest, which is kept: a copy of it takes the
        oldest one's place. May run outside the event loop's thread.
        """
        target = self.next
        if target.version != base:
            if self.newest.version != base:
                raise AssertionError(f"{base} is not held")
            np.copyto(target.parameters, self.newest.parameters)
        self._state.snapshot = target.parameters
        if look is not None:
            look(central.parameters, self._state, delta)
        return central.apply(rule, self._state, delta, staleness)

    def refresh(self, central: CentralVariable, rule: UpdateRule) -> None:
        """For a worker that pulls: what it gets is then in `next`. May run outside the event loop's thread."""
        self._state.snapshot = self.next.parameters
        rule.refresh(central.parameters, self._state)

    def forget(self, rule: UpdateRule) -> None:
        """The worker has gone: take it out of what the rule keeps of the run."""
        rule.forget_worker(self._state)

    def written(self, version: Version, buffers: bytes) -> None:
        """`next` has been written, with this version: it is the newest now."""
        self.next.becomes(version, buffers)
        self._snapshots.rotate(-1)

    def move(self, places: Sequence[Published]) -> None:
        """Move the snapshots to places that the worker can read, too. May run outside the event loop's thread."""
        for one, place in zip(self._snapshots, places, strict=True):
            np.copyto(place.parameters, one.parameters)
            one.parameters, one.published = place.parameters, place
            if one.version != NO_VERSION:
                place.publish(one.version, one.buffers)
        self._state.snapshot = self.next.parameters  # or the rule's state would keep an array that nobody uses

    def keep_newest_only(self) -> None:
        """The worker pulled, and dropped what it had: no gradient of older parameters will come."""
        for one in self._snapshots:
            if one is not self.newest:
                one.will_change()
                one.version, one.buffers = NO_VERSION, b""
