"""The regions of one session: one that its worker writes deltas to, and one for each snapshot that the server keeps.

A delta region is as trustworthy as a network: what lies there may be anything, and change at any moment. So it is
copied, and judged while it is copied (`gem_core.checked_copy`). A snapshot region *is* the session's snapshot (s_w):
the worker reads it where it lies, and cannot write to it.
"""

from itertools import count

import numpy as np
from numpy.typing import NDArray

from gem_core import Layout
from gem_server.shared_memory.memory_file import MemoryFile
from gem_server.state.central_variable import Handle, Version

# Where a payload starts in its region: behind the stamp, and at the border of a cache line.
PAYLOAD_OFFSET = 64


class Region:
    """A payload of the layout, FLOAT32 and BUFFERs, in memory that is shared."""

    def __init__(self, number: int, layout: Layout, *, worker_writes: bool) -> None:
        self.number = number
        self.payload_bytes = 4 * layout.parameter_count + layout.buffer_bytes
        name = "gemps-delta" if worker_writes else "gemps-snapshot"
        self.file = MemoryFile(name, PAYLOAD_OFFSET + self.payload_bytes, others_write=worker_writes)
        self._parameter_bytes = 4 * layout.parameter_count

    @property
    def handle(self) -> Handle:
        """The whole payload."""
        return Handle(self.number, PAYLOAD_OFFSET, self.payload_bytes)

    @property
    def rest(self) -> memoryview:
        """The BUFFERs."""
        return memoryview(self.file.map)[PAYLOAD_OFFSET + self._parameter_bytes :]


class DeltaRegion(Region):
    """Where the worker writes its deltas; here it can only be read.

    Attributes:
        parameters: float32[parameter_count]. They may be anything, and change while they are read.
    """

    def __init__(self, number: int, layout: Layout) -> None:
        super().__init__(number, layout, worker_writes=True)
        self.parameters: NDArray[np.float32] = np.frombuffer(
            self.file.map, np.float32, layout.parameter_count, PAYLOAD_OFFSET
        )


class SnapshotRegion(Region):
    """Where a snapshot lies; the worker can only read it.

    Attributes:
        parameters: float32[parameter_count], in place.
    """

    def __init__(self, number: int, layout: Layout) -> None:
        super().__init__(number, layout, worker_writes=False)
        self.parameters: NDArray[np.float32] = np.frombuffer(
            self.file.map, np.float32, layout.parameter_count, PAYLOAD_OFFSET
        )
        self._stamp: NDArray[np.uint64] = np.frombuffer(self.file.map, np.uint64, 2)

    def will_change(self) -> None:
        """From now on it holds no version: a worker that reads it all the same can tell."""
        self._stamp[1] = 0

    def publish(self, version: Version, buffers: bytes) -> None:
        """The parameters are those of `version`, and these are its BUFFERs."""
        self.rest[:] = buffers
        self._stamp[0] = version.incarnation
        self._stamp[1] = version.clock


class SessionRegions:
    """What one session was given.

    Attributes:
        delta: the newest delta region; None when its connection has ended.
        snapshots: one for each snapshot that the session keeps.
    """

    def __init__(self, layout: Layout, snapshots: int) -> None:
        self._layout = layout
        self._numbers = count(1)
        self.delta: DeltaRegion | None = None
        self.snapshots = tuple(SnapshotRegion(next(self._numbers), layout) for _ in range(snapshots))

    def new_delta(self) -> DeltaRegion:
        """A fresh delta region, in place of the one before: whoever has that can do nothing with it any more."""
        self.delta = DeltaRegion(next(self._numbers), self._layout)
        return self.delta

    def close_delta(self, region: DeltaRegion) -> None:
        """Let go of it, if it is still the newest."""
        if self.delta is region:
            self.delta = None
