"""Write-ahead log of groups of commits.

Event loop thread only, except the log thread, which writes one closed group at a time from a snapshot.
"""

import asyncio
import errno
import os
import secrets
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gem_core import Layout
from gem_server.durability import log_format, run_record
from gem_server.durability.agreement import Agreement
from gem_server.durability.files import Files, StorageError, is_full, storage_failed, storage_full
from gem_server.durability.log_format import ENTRY_BYTES, HEADER_BYTES, NO_LOG, FileHeader
from gem_server.durability.run_record import Committed
from gem_server.errors import Reason, RefusedError
from gem_server.state.buffers import NO_BUFFERS, Buffers
from gem_server.state.central_variable import Snapshot
from gem_server.state.kept_rule import KeptRule

FLOAT32_BYTES = 4
RESERVE = "reserve"
# For directories and partial blocks.
RESERVE_SLACK = 256 * 1024
# Minimum allocation (the larger).
STEP_BYTES, STEP_RECORDS = 4 * 1024 * 1024, 8
# Size that requests a checkpoint (the larger).
LARGE_BYTES, LARGE_RECORDS = 256 * 1024 * 1024, 32

Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class LogFile:
    """One file of the chain. `pending`: commits not yet written."""

    path: Path
    descriptor: int
    header: FileHeader
    allocated: int
    position: int = HEADER_BYTES
    pending: int = 0
    is_large: bool = False

    @property
    def reference(self) -> dict[str, Any]:
        """The log's reference in a checkpoint."""
        return {"number": self.header.number, "id": self.header.log_id.hex()}


@dataclass(slots=True, eq=False)
class _Group:
    """Commits written together; if empty, the file's header."""

    file: LogFile
    done: "asyncio.Future[None]"
    entries: list[Committed] = field(default_factory=list)
    totals: dict[str, Any] = field(default_factory=dict)
    snapshot: Snapshot | None = None
    vectors: tuple[NDArray[np.float32], ...] = ()
    buffers: Buffers = NO_BUFFERS
    last_clock: int = 0


class Log:
    """The log of one server. Up to clock `synced`, all is durable."""

    def __init__(
        self,
        *,
        directory: Path,
        files: Files,
        staging_buffers: Callable[[Layout], int],
        rule_vectors: int,
        agreement: Agreement,
        on_large: Callable[[], None],
        on_failure: Callable[[StorageError], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.directory = directory
        self._clock = clock
        self.synced = 0
        self._files = files
        self._count_buffers = staging_buffers
        self._vectors = 1 + rule_vectors
        self._staging_buffers = 0
        self._agreement = agreement
        self._on_large = on_large
        self._on_failure = on_failure
        self._thread = ThreadPoolExecutor(1, "gem-log")
        self._current: LogFile | None = None
        self._open: list[LogFile] = []
        self._last_number = 0
        self._last_id = NO_LOG
        self._record_bytes = 0
        self._promised = 0
        self._making_room = asyncio.Lock()
        self._collecting: _Group | None = None
        self._held = False
        self._closed: deque[_Group] = deque()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._wake: asyncio.Future[None] | None = None
        self._writer: asyncio.Task[None] | None = None
        self._ending = False
        self._failed = False
        self._is_short = False
        self.refused_at: float | None = None  # a commit, for want of room
        self.refused_since: float | None = None  # the first such refusal after the newest commit; None: none

    def start(self, last_number: int, last_id: bytes) -> None:
        """Start after this file (0, NO_LOG: none)."""
        self._last_number, self._last_id = last_number, last_id
        self._writer = asyncio.create_task(self._write_groups())

    async def close(self) -> None:
        """Write applied commits, then end. Idempotent."""
        self._ending = True
        self._wake_writer()
        if self._writer is not None:
            await asyncio.wait([self._writer])
        self._thread.shutdown()
        async with self._making_room:
            self._current = None
            while self._open:
                self._files.close(self._open.pop().descriptor)

    async def until(self, clock: int) -> None:
        """Wait until `clock` is durable. Raises DRAINING."""
        if clock > self.synced:
            if self._failed:
                raise storage_failed()
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((clock, future))
            await future

    def has_room(self) -> bool:
        """Whether space for a commit is allocated. Raises NOT_INITIALIZED, DRAINING."""
        if self._failed:
            raise storage_failed()
        if self._current is None:
            raise RefusedError(Reason.NOT_INITIALIZED, "the first parameters are not stored yet: Pull, then Commit")
        return self._end_after_another(self._current) <= self._current.allocated

    def try_reserve(self) -> bool:
        """Reserve space for a commit, if allocated. Raises as `has_room`."""
        if not self.has_room():
            return False
        self._promised += 1
        return True

    def release_reservation(self) -> None:
        """Release a reservation."""
        self._promised -= 1

    async def make_room(self) -> None:
        """Allocate space. Raises STORAGE_FULL, DRAINING."""
        async with self._making_room:
            file = self._current
            if file is None or self._end_after_another(file) <= file.allocated:
                return  # others allocated
            step = max(STEP_BYTES, STEP_RECORDS * self._record_bytes)
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            lengths = () if self._is_short else (file.allocated + step, self._end_after_another(file))
            for length in lengths:
                try:
                    await _in_thread(self._files.allocate, file.descriptor, length)
                except OSError as error:
                    if not is_full(error):
                        self._fail("reserve room in", file, error)
                        raise storage_failed() from error
                    full = error
                else:
                    file.allocated = max(file.allocated, length)
                    return
            self.refused_at = self._clock()
            if self.refused_since is None:
                self.refused_since = self.refused_at
            self._on_large()
            raise storage_full("there is no room for the log, so nothing can be committed (pulls still work)", full)

    async def room_for_checkpoint(self, layout: Layout, checkpoint_bytes: int) -> None:
        """Ensure space for a checkpoint and the next log file, perhaps from the reserve. Raises OSError."""
        self._measure(layout)
        wanted = self._reserve_bytes(checkpoint_bytes)
        free = self._files.free_bytes(self.directory.parent)
        self._is_short = free < 2 * wanted
        if free < wanted:
            await _in_thread(self._files.remove, self.directory / RESERVE)
            if self._files.free_bytes(self.directory.parent) < wanted:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def keep_reserve(self, checkpoint_bytes: int) -> None:
        """Allocate the reserve for the next checkpoint, if possible."""
        try:
            await _in_thread(self._allocate_reserve, self.directory / RESERVE, self._reserve_bytes(checkpoint_bytes))
        except OSError as error:
            if not is_full(error):
                self._fail("reserve room next to", None, error)
        finally:
            self._is_short = False

    def wanted_bytes(self, layout: Layout, checkpoint_bytes: int) -> int:
        """Bytes that the disk must have free for the next checkpoint, and for the log's next file meanwhile."""
        self._measure(layout)
        return self._reserve_bytes(checkpoint_bytes)

    def _reserve_bytes(self, checkpoint_bytes: int) -> int:
        return checkpoint_bytes + self._first_length + RESERVE_SLACK

    @property
    def _first_length(self) -> int:
        """The first size of a log file, which has room for the commits that are being processed at a switch."""
        return HEADER_BYTES + (self._staging_buffers + 1) * self._record_bytes

    def _measure(self, layout: Layout) -> None:
        self._staging_buffers = self._count_buffers(layout)
        self._record_bytes = ENTRY_BYTES + self._vector_bytes(layout) + layout.buffer_bytes

    def _vector_bytes(self, layout: Layout) -> int:
        return self._vectors * layout.parameter_count * FLOAT32_BYTES

    def _allocate_reserve(self, path: Path, length: int) -> None:
        if path.exists() and path.stat().st_size >= length:
            return
        self._files.make_directory(self.directory)
        self._files.remove(path)
        descriptor = self._files.create(path)
        try:
            self._files.allocate(descriptor, length)
        except BaseException:
            self._files.remove(path)
            raise
        finally:
            self._files.close(descriptor)

    def _end_after_another(self, file: LogFile) -> int:
        return file.position + (file.pending + self._promised + 1) * self._record_bytes

    async def still(self, snapshot: Snapshot) -> None:
        """Wait until the log does not read this snapshot."""
        while reading := [one for one in self._closed if one.snapshot is snapshot]:
            await asyncio.wait([reading[-1].done])

    def keep_group_open(self) -> None:
        """Keep the group open until `append`, because its snapshot may change."""
        self._held = True

    def append(self, entry: Committed, totals: dict[str, Any], snapshot: Snapshot, rule: KeptRule) -> None:
        """Add an applied commit, which uses a reservation; `snapshot` and `rule`: its result, see `still`."""
        self._held = False
        self.refused_since = None
        if self._failed or self._current is None:
            return
        self._promised -= 1
        group = self._collecting
        if group is None:
            group = self._collecting = _Group(self._current, asyncio.get_running_loop().create_future())
        group.file.pending += 1
        group.entries.append(entry)
        group.totals = totals | {"rule": rule.record}
        group.snapshot, group.buffers = snapshot, snapshot.buffers
        group.vectors = (snapshot.parameters, *rule.vectors)
        group.last_clock = snapshot.version.clock
        self._wake_writer()

    async def prepare(self, layout: Layout) -> LogFile:
        """Create the next file. Raises OSError if the disk is full, StorageError."""
        header = FileHeader(
            self._last_number + 1,
            secrets.token_bytes(16),
            self._last_id,
            0,
            layout.digest,
            self._vector_bytes(layout),
            layout.buffer_bytes,
        )
        self._measure(layout)
        path = self.directory / f"{header.number:012d}.wal"
        length = self._first_length
        try:
            descriptor = await _in_thread(self._create, path, length, undo=self._files.close)
        except OSError as error:
            if not is_full(error):
                raise self._fail("make", None, error) from error
            raise
        return LogFile(path, descriptor, header, length)

    def discard(self, file: LogFile) -> None:
        """Delete an unused prepared file."""
        if file.header.number > self._last_number:
            self._files.close(file.descriptor)
            self._files.remove(file.path)

    def switch(self, file: LogFile, clock: int) -> dict[str, Any]:
        """Continue in a prepared file between two commits; return its reference."""
        file.header = replace(file.header, clock=clock)
        self.close_group()
        self._current = file
        self._open.append(file)
        self._last_number, self._last_id = file.header.number, file.header.log_id
        self._closed.append(_Group(file, asyncio.get_running_loop().create_future()))
        self._wake_writer()
        return file.reference

    async def begun(self, file: LogFile) -> None:
        """Wait until everything up to the file's header is durable. Raises StorageError."""
        for group in list(self._closed):
            if group.file is file and not group.entries:
                await asyncio.wait([group.done])
        if self._failed:
            raise StorageError("the log has failed")

    def release_older_files(self, file: LogFile, clock: int) -> None:
        """Release older files: this one's checkpoint is durable."""
        self.show(self._agreement.written(clock))
        remove_before(self._files, self.directory, file.header.number)

    async def _write_groups(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self._failed:
                while self._closed:
                    self._closed.pop().done.set_result(None)
                return
            if not self._closed and not self._held and (self._agreement.closes_groups or self._ending):
                self.close_group()
            if not self._closed:
                if self._ending:
                    return
                self._wake = loop.create_future()
                await self._wake
                continue
            group = self._closed[0]
            try:
                end = await loop.run_in_executor(self._thread, self._write, group)
            except OSError as error:
                self._fail("write", group.file, error)
            self._closed.popleft()
            group.done.set_result(None)
            if self._failed:
                continue  # failed elsewhere
            file = group.file
            file.position = end
            file.pending -= len(group.entries)
            if group.entries:
                self.show(self._agreement.written(group.last_clock))
                if not file.is_large and end >= max(LARGE_BYTES, LARGE_RECORDS * self._record_bytes):
                    file.is_large = True
                    self._on_large()
            else:
                await self._close_files_before(file)

    def _write(self, group: _Group) -> int:
        """Log thread. Returns the end offset."""
        file = group.file
        if not group.entries:
            pieces = [memoryview(log_format.encode_header(file.header))]
            offset = 0
        else:
            document = group.totals | {"entries": [run_record.describe_commit(entry) for entry in group.entries]}
            pieces = log_format.encode_record(
                file.header.log_id,
                group.last_clock - len(group.entries) + 1,
                group.last_clock,
                document,
                group.buffers.joined(),
                [one.data.cast("B") for one in group.vectors],
            )
            offset = file.position
        self._files.write(file.descriptor, pieces, offset)
        self._files.sync_data(file.descriptor)
        return max(file.position, offset + sum(piece.nbytes for piece in pieces))

    def _create(self, path: Path, length: int) -> int:
        if not self.directory.exists():
            self._files.make_directory(self.directory)
            self._files.sync(self.directory.parent)
        self._files.remove(path)
        descriptor = self._files.create(path)
        try:
            self._files.allocate(descriptor, length)
            self._files.sync(self.directory)
        except BaseException:
            self._files.close(descriptor)
            self._files.remove(path)
            raise
        return descriptor

    async def _close_files_before(self, file: LogFile) -> None:
        async with self._making_room:  # it may use them
            for older in [one for one in self._open if one.header.number < file.header.number]:
                self._files.close(older.descriptor)
                self._open.remove(older)

    def close_group(self) -> None:
        """End the record with the last commit."""
        if self._collecting is not None:
            self._agreement.group_closed(self._collecting.last_clock)
            self._closed.append(self._collecting)
            self._collecting = None
            self._wake_writer()

    def _wake_writer(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def show(self, clock: int) -> None:
        """Up to `clock`, all is durable."""
        self.synced = max(self.synced, clock)
        waiting, self._waiting = self._waiting, []
        for wanted, future in waiting:
            if wanted > self.synced:
                self._waiting.append((wanted, future))
            elif not future.done():
                future.set_result(None)

    def _fail(self, what: str, file: LogFile | None, error: OSError) -> StorageError:
        place = file.path if file is not None else self.directory
        failure = StorageError(f"could not {what} the log {place}: {error}")
        self._failed = True
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(storage_failed())
        self._waiting.clear()
        while len(self._closed) > 1:  # its thread may read the first
            self._closed.pop().done.set_result(None)
        self._wake_writer()
        self._on_failure(failure)
        return failure


def remove_before(files: Files, directory: Path, number: int | None) -> None:
    """Delete files below `number`; None: all, and the reserve."""
    if number is None:
        files.remove(directory / RESERVE)
    for path in sorted(directory.glob("*.wal")):
        if number is None or int(path.stem) < number:
            files.remove(path)


async def _in_thread(
    work: Callable[..., Result], *arguments: Any, undo: Callable[[Result], None] | None = None
) -> Result:
    """Complete even if cancelled; `undo` then takes the result."""
    job = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        await asyncio.wait([job])
        if undo is not None and job.exception() is None:
            undo(job.result())
        raise
