"""Memory budget. Allocates nothing.

total = central variable + staging buffers + 2 shared snapshots + the rule's run vectors + worker vectors
        + distinct layouts
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from gem_core import Layout
from gem_core.buffers import DEFAULT_BUFFERS, default_buffers
from gem_server.errors import Reason, RefusedError

FLOAT32_BYTES = 4
SHARED_SNAPSHOTS = 2
# What a version of a BUFFER takes besides its values: a bytes object, and its places in `Buffers`.
BUFFER_OBJECT_BYTES = 64
RETRY_SECONDS = 10.0


def count_buffers(wanted: int, layout: Layout | None) -> int:
    """The number of staging buffers: the same on all shards, as a commit needs one on each."""
    if wanted or layout is None:
        return wanted or DEFAULT_BUFFERS
    whole = layout.whole
    vector_bytes = FLOAT32_BYTES * whole.parameter_count + whole.buffer_bytes
    return default_buffers(vector_bytes // (layout.part.count if layout.part is not None else 1))


@dataclass(slots=True)
class MemoryBudget:
    """Reserved bytes. `staging_buffers`: the setting; `more_buffers`: additional ones."""

    limit: int
    staging_buffers: int
    vectors_per_worker: int
    vectors_per_run: int = 0
    more_buffers: int = 0
    _workers: dict[bytes, int] = field(default_factory=dict)
    _models: dict[bytes, int] = field(default_factory=dict)
    _layouts: dict[bytes, Layout] = field(default_factory=dict)
    _bound: int | None = None

    def model_bytes(self, layout: Layout) -> int:
        """The bytes without workers."""
        vector = FLOAT32_BYTES * layout.parameter_count + _buffers_bytes(layout)
        rules = FLOAT32_BYTES * layout.parameter_count * self.vectors_per_run
        buffers = count_buffers(self.staging_buffers, layout) + self.more_buffers
        return vector * (1 + buffers + SHARED_SNAPSHOTS) + rules

    def worker_bytes(self, layout: Layout, *, takes_differences: bool = False) -> int:
        """The bytes per worker."""
        vectors = self.vectors_per_worker + takes_differences
        return FLOAT32_BYTES * layout.parameter_count * vectors + _buffers_bytes(layout)

    @property
    def reserved(self) -> int:
        """Bytes promised."""
        model = self._bound if self._bound is not None else max(self._models.values(), default=0)
        return model + sum(self._workers.values()) + _bytes_of(self._layouts.values())

    def bind(self, layout: Layout) -> None:
        """Set the run's layout."""
        self._bound = self.model_bytes(layout)
        self._models.clear()

    def promise(
        self,
        session_id: bytes,
        layout: Layout,
        *,
        takes_differences: bool = False,
        instead_of: bytes | None = None,
    ) -> None:
        """Reserve a worker's vectors, replacing another's. Raises MEMORY, retryable if that fits alone."""
        model = self.model_bytes(layout) if self._bound is None else self._bound
        worker = self.worker_bytes(layout, takes_differences=takes_differences)
        going = (session_id, instead_of)
        others = sum(cost for other, cost in self._workers.items() if other not in going)
        layouts = _bytes_of([layout, *(one for other, one in self._layouts.items() if other not in going)])
        shared = max(model, max(self._models.values(), default=0)) + layouts
        needed = shared + worker + others
        if needed > self.limit:
            fits_alone = model + worker + layout.object_bytes <= self.limit
            buffers = count_buffers(self.staging_buffers, layout)
            raise RefusedError(
                Reason.MEMORY,
                f"the model takes {shared:,} bytes on the server and each worker {worker:,}; with {len(self._workers)} "
                f"workers already joined that makes {needed:,} of the {self.limit:,} allowed: "
                + ("start fewer workers, or " if fits_alone else "")
                + ("choose --parameter-wire float32, or " if takes_differences else "")
                + f"raise --memory-limit to {needed:,} at least"
                + (f", or have fewer limits.staging_buffers ({buffers} now)" if buffers > 1 else ""),
                retry_after=RETRY_SECONDS if fits_alone else None,
                metadata={"needed_bytes": str(needed), "limit_bytes": str(self.limit), "worker_bytes": str(worker)},
            )
        self._workers[session_id] = worker
        self._layouts[session_id] = layout
        if self._bound is None:
            self._models[session_id] = model

    def release(self, session_id: bytes) -> None:
        """Release a session's reservation."""
        self._workers.pop(session_id, None)
        self._models.pop(session_id, None)
        self._layouts.pop(session_id, None)


def _buffers_bytes(layout: Layout) -> int:
    """The bytes of one version of all BUFFERs that shares none with another version."""
    return layout.buffer_bytes + BUFFER_OBJECT_BYTES * len(layout.buffers)


def _bytes_of(layouts: Iterable[Layout]) -> int:
    return sum(one.object_bytes for one in set(layouts))
