"""A session's shared memory.

Deltas are untrusted and may change during reads: `gem_core.checked_copy` validates while copying. Snapshot regions
*are* the snapshots (s_w).
"""

from collections.abc import Sequence
from itertools import accumulate, count

import numpy as np
from numpy.typing import NDArray

from gem_core import Layout
from gem_server.shared_memory.memory_file import MemoryFile
from gem_server.version import Handle, Version

# After the stamp, aligned to a cache line.
PAYLOAD_OFFSET = 64


class Region:
    """FLOAT32 parameters, then BUFFERs."""

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

    def holds(self, handle: Handle) -> bool:
        """Whether `handle` names a payload in this region."""
        return (handle.region, handle.offset) == (
            self.number,
            PAYLOAD_OFFSET,
        ) and handle.byte_count <= self.payload_bytes

    @property
    def rest(self) -> memoryview:
        """The BUFFERs."""
        return memoryview(self.file.map)[PAYLOAD_OFFSET + self._parameter_bytes :]


class DeltaRegion(Region):
    """Deltas, read-only here; `parameters`: float32[parameter_count]."""

    def __init__(self, number: int, layout: Layout) -> None:
        super().__init__(number, layout, worker_writes=True)
        self.parameters: NDArray[np.float32] = np.frombuffer(
            self.file.map, np.float32, layout.parameter_count, PAYLOAD_OFFSET
        )


class SnapshotRegion(Region):
    """A snapshot; `parameters`: float32[parameter_count], in place."""

    def __init__(self, number: int, layout: Layout) -> None:
        super().__init__(number, layout, worker_writes=False)
        self.parameters: NDArray[np.float32] = np.frombuffer(
            self.file.map, np.float32, layout.parameter_count, PAYLOAD_OFFSET
        )
        self._stamp: NDArray[np.uint64] = np.frombuffer(self.file.map, np.uint64, 2)
        self._starts = tuple(accumulate((tensor.byte_count for tensor in layout.buffers), initial=0))
        self._pieces: Sequence[bytes | None] = (None,) * len(layout.buffers)  # the BUFFERs that lie there

    def will_change(self) -> None:
        """Invalidate the stamp before a change."""
        self._stamp[1] = 0

    def publish(self, version: Version, pieces: Sequence[bytes]) -> None:
        """Write those of all BUFFERs that are other objects than last time, then stamp the region with `version`."""
        if pieces is not self._pieces:
            rest = self.rest
            for start, piece, known in zip(self._starts, pieces, self._pieces, strict=False):
                if piece is not known:
                    rest[start : start + len(piece)] = piece
            self._pieces = pieces
        self._stamp[0] = version.incarnation
        self._stamp[1] = version.clock


class SessionRegions:
    """`delta` is None after disconnection."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._numbers = count(1)
        self.delta: DeltaRegion | None = None
        self.snapshot = SnapshotRegion(next(self._numbers), layout)

    def new_delta(self) -> DeltaRegion:
        """Replace the delta region."""
        self.delta = DeltaRegion(next(self._numbers), self._layout)
        return self.delta

    def close_delta(self, region: DeltaRegion) -> None:
        """Drop `region` if it is the newest."""
        if self.delta is region:
            self.delta = None
