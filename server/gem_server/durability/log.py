"""The log's writing side: groups of commits, on the disk before anything shows them. DESIGN.md has the whole way.

The event loop's thread only, but for what the log's own thread does: it writes one closed group at a time, and reads
that group's parameters where they are, in a session's snapshot.
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
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gem_core import Layout
from gem_server.durability import log_format, run_record
from gem_server.durability.files import Files, StorageFailure, is_full, storage_failed, storage_full
from gem_server.durability.log_format import ENTRY_BYTES, HEADER_BYTES, NO_LOG, FileHeader
from gem_server.durability.run_record import Committed
from gem_server.errors import Reason, Refusal
from gem_server.state.central_variable import Snapshot

FLOAT32_BYTES = 4
RESERVE = "reserve"
# For directories, and for files that do not fill their last block.
RESERVE_SLACK = 256 * 1024
# Room is set aside in steps, so that it seldom has to be waited for: this many bytes, or records if that is more.
STEP_BYTES, STEP_RECORDS = 4 * 1024 * 1024, 8
# A log of this size, or of so many records if that is more, asks for a snapshot, after which it begins anew.
LARGE_BYTES, LARGE_RECORDS = 256 * 1024 * 1024, 32

Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class LogFile:
    """One file of the chain. `pending` commits are applied and on their way to it; `allocated` bytes are its own."""

    path: Path
    descriptor: int
    header: FileHeader
    allocated: int
    position: int = HEADER_BYTES
    pending: int = 0
    is_large: bool = False

    @property
    def reference(self) -> dict[str, Any]:
        """What a snapshot's state says of the log that follows it."""
        return {"number": self.header.number, "id": self.header.log_id.hex()}


@dataclass(slots=True, eq=False)
class _Group:
    """Commits that go to the disk together; without any it is the file's header."""

    file: LogFile
    done: "asyncio.Future[None]"
    entries: list[Committed] = field(default_factory=list)
    totals: dict[str, Any] = field(default_factory=dict)
    snapshot: Snapshot | None = None
    parameters: NDArray[np.float32] | None = None
    buffers: bytes = b""
    last_clock: int = 0


class Log:
    """The write-ahead log of one server.

    `synced` is the clock up to which everything may be shown; 0: nothing yet.
    """

    def __init__(
        self,
        *,
        directory: Path,
        files: Files,
        staging_buffers: Callable[[Layout], int],
        on_large: Callable[[], None],
        on_failure: Callable[[StorageFailure], None],
    ) -> None:
        self.directory = directory
        self.synced = 0
        self._files = files
        self._count_buffers = staging_buffers
        self._staging_buffers = 0
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

    def start(self, last_number: int, last_id: bytes) -> None:
        """Begin, in a directory whose chain ends with this file (0 and NO_LOG: there is none)."""
        self._last_number, self._last_id = last_number, last_id
        self._writer = asyncio.create_task(self._write_groups())

    async def close(self) -> None:
        """Write what was applied, then end. Harmless when the log has failed, or was closed."""
        self._ending = True
        self._look()
        if self._writer is not None:
            await asyncio.wait([self._writer])
        self._thread.shutdown()
        async with self._making_room:
            self._current = None
            while self._open:
                self._files.close(self._open.pop().descriptor)

    # --- what may be shown

    async def until(self, clock: int) -> None:
        """Return when everything up to this clock is on the disk. Raises DRAINING when the disk has failed."""
        if clock > self.synced:
            if self._failed:
                raise storage_failed()
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((clock, future))
            await future

    # --- room

    def has_room(self) -> bool:
        """Whether room is set aside for one more commit. Raises NOT_INITIALIZED before there is a log; DRAINING."""
        if self._failed:
            raise storage_failed()
        if self._current is None:
            raise Refusal(Reason.NOT_INITIALIZED, "the first parameters are not stored yet: Pull, then Commit")
        return self._end_after_another(self._current) <= self._current.allocated

    def take_promise(self) -> bool:
        """Take room for one commit, which will be applied; False when there is none set aside. Raises as `has_room`."""
        if not self.has_room():
            return False
        self._promised += 1
        return True

    def give_back_promise(self) -> None:
        """The commit did not enter the queue after all."""
        self._promised -= 1

    async def make_room(self) -> None:
        """Set more room aside. Raises STORAGE_FULL when the disk has none."""
        async with self._making_room:
            file = self._current
            if file is None or self._end_after_another(file) <= file.allocated:
                return  # another has made some meanwhile
            step = max(STEP_BYTES, STEP_RECORDS * self._record_bytes)
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            lengths = () if self._is_short else (file.allocated + step, self._end_after_another(file))
            for length in lengths:
                try:
                    await _in_thread(self._files.allocate, file.descriptor, length)
                except OSError as error:
                    if not is_full(error):
                        self._fail("set room aside in", file, error)
                        raise storage_failed() from error
                    full = error
                else:
                    file.allocated = max(file.allocated, length)
                    return
            self._on_large()
            raise storage_full("there is no room for the log, so nothing can be committed (pulls go on)", full)

    async def room_for_checkpoint(self, layout: Layout, checkpoint_bytes: int) -> None:
        """Make sure that a checkpoint of this size and the log behind it have room, if need be what was set aside.

        Otherwise a log that has taken the last room could not be made shorter, for want of room. Until `keep_reserve`
        the log itself takes no more where there is little. Raises OSError when there is none, and changes nothing.
        """
        self._measure(layout)
        wanted = self._reserve_bytes(checkpoint_bytes)
        free = self._files.free_bytes(self.directory.parent)
        self._is_short = free < 2 * wanted
        if free < wanted:
            await _in_thread(self._files.remove, self.directory / RESERVE)
            if self._files.free_bytes(self.directory.parent) < wanted:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def keep_reserve(self, checkpoint_bytes: int) -> None:
        """Set room aside for one more checkpoint of this size and the log behind it, where the disk has any."""
        try:
            await _in_thread(self._allocate_reserve, self.directory / RESERVE, self._reserve_bytes(checkpoint_bytes))
        except OSError as error:
            if not is_full(error):
                self._fail("set room aside beside", None, error)
        finally:
            self._is_short = False

    def _reserve_bytes(self, checkpoint_bytes: int) -> int:
        return checkpoint_bytes + self._first_length + RESERVE_SLACK

    @property
    def _first_length(self) -> int:
        """Of a file, for what may be under way when the log goes on in it."""
        return HEADER_BYTES + (self._staging_buffers + 1) * self._record_bytes

    def _measure(self, layout: Layout) -> None:
        self._staging_buffers = self._count_buffers(layout)
        self._record_bytes = ENTRY_BYTES + layout.parameter_count * FLOAT32_BYTES + layout.buffer_bytes

    def _allocate_reserve(self, path: Path, length: int) -> None:
        if path.exists() and path.stat().st_size >= length:
            return
        self._files.make_directory(self.directory)
        self._files.remove(path)
        descriptor = self._files.create(path)
        try:
            self._files.allocate(descriptor, length)
        except BaseException:
            self._files.remove(path)  # what could be had of it is of no use
            raise
        finally:
            self._files.close(descriptor)

    def _end_after_another(self, file: LogFile) -> int:
        return file.position + (file.pending + self._promised + 1) * self._record_bytes

    # --- what the applying task does

    async def still(self, snapshot: Snapshot) -> None:
        """Return when nothing reads this snapshot for the disk any more; then it may be written."""
        for group in list(self._closed):
            if group.snapshot is snapshot:
                await asyncio.wait([group.done])

    def hold(self) -> None:
        """Until the next `append` the group that collects must stay open: the snapshot it ends with may be changing."""
        self._held = True

    def append(self, entry: Committed, totals: dict[str, Any], snapshot: Snapshot) -> None:
        """A commit was applied, and took the room that was promised for it; `snapshot` is what came of it."""
        self._held = False
        if self._failed or self._current is None:
            return
        self._promised -= 1
        group = self._collecting
        if group is None:
            group = self._collecting = _Group(self._current, asyncio.get_running_loop().create_future())
        group.file.pending += 1
        group.entries.append(entry)
        group.totals = totals
        group.snapshot, group.parameters, group.buffers = snapshot, snapshot.parameters, snapshot.buffers
        group.last_clock = snapshot.version.clock
        self._look()

    # --- the chain

    async def prepare(self, layout: Layout) -> LogFile:
        """The next file of the chain, with room for what may be under way. Raises OSError when there is no room."""
        header = FileHeader(
            self._last_number + 1,
            secrets.token_bytes(16),
            self._last_id,
            0,
            layout.digest,
            layout.parameter_count * FLOAT32_BYTES,
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
        """Forget a prepared file; harmless when it was switched to."""
        if file.header.number > self._last_number:
            self._files.close(file.descriptor)
            self._files.remove(file.path)

    def switch(self, file: LogFile, clock: int) -> dict[str, Any]:
        """At this clock, between two commits, go on in a prepared file; returns what the snapshot has to say of it."""
        file.header = replace(file.header, clock=clock)
        self._close_group()
        self._current = file
        self._open.append(file)
        self._last_number, self._last_id = file.header.number, file.header.log_id
        self._closed.append(_Group(file, asyncio.get_running_loop().create_future()))
        self._look()
        return file.reference

    async def begun(self, file: LogFile) -> None:
        """Return when the file's header, and so everything before it, is on the disk. Raises StorageFailure."""
        for group in list(self._closed):
            if group.file is file and not group.entries:
                await asyncio.wait([group.done])
        if self._failed:
            raise StorageFailure("the log has failed")

    def follows(self, file: LogFile, clock: int) -> None:
        """The snapshot that this file follows is on the disk: what is older may be shown, and is needed no more."""
        self._show(clock)
        remove_before(self._files, self.directory, file.header.number)

    # --- the log's thread

    async def _write_groups(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self._failed:
                while self._closed:
                    self._closed.pop().done.set_result(None)
                return
            if not self._closed and not self._held:
                self._close_group()
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
                continue  # perhaps elsewhere, meanwhile: then this counts no more
            file = group.file
            file.position = end
            file.pending -= len(group.entries)
            if group.entries:
                self._show(group.last_clock)
                if not file.is_large and end >= max(LARGE_BYTES, LARGE_RECORDS * self._record_bytes):
                    file.is_large = True
                    self._on_large()
            else:
                await self._close_files_before(file)

    def _write(self, group: _Group) -> int:
        """On the log's thread. Returns the offset behind what was written."""
        file = group.file
        if group.parameters is None:
            pieces = [memoryview(log_format.encode_header(file.header))]
            offset = 0
        else:
            pieces = log_format.encode_record(
                file.header.log_id,
                group.last_clock - len(group.entries) + 1,
                group.last_clock,
                group.totals | {"entries": [run_record.describe_commit(entry) for entry in group.entries]},
                group.buffers,
                group.parameters.data.cast("B"),
            )
            offset = file.position
        self._files.write(file.descriptor, pieces, offset)
        self._files.sync_data(file.descriptor)
        return max(file.position, offset + sum(piece.nbytes for piece in pieces))

    def _create(self, path: Path, length: int) -> int:
        """On a thread: a file with so much room, whose name is on the disk."""
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
        async with self._making_room:  # which may be under way in one of them
            for older in [one for one in self._open if one.header.number < file.header.number]:
                self._files.close(older.descriptor)
                self._open.remove(older)

    def _close_group(self) -> None:
        if self._collecting is not None:
            self._closed.append(self._collecting)
            self._collecting = None

    def _look(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _show(self, clock: int) -> None:
        self.synced = max(self.synced, clock)
        waiting, self._waiting = self._waiting, []
        for wanted, future in waiting:
            if wanted > self.synced:
                self._waiting.append((wanted, future))
            elif not future.done():
                future.set_result(None)

    def _fail(self, what: str, file: LogFile | None, error: OSError) -> StorageFailure:
        place = file.path if file is not None else self.directory
        failure = StorageFailure(f"could not {what} the log {place}: {error}")
        self._failed = True
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(storage_failed())
        self._waiting.clear()
        while len(self._closed) > 1:  # the first one may be with the thread, which reads its snapshot
            self._closed.pop().done.set_result(None)
        self._look()
        self._on_failure(failure)
        return failure


def remove_before(files: Files, directory: Path, number: int | None) -> None:
    """Delete the files with a lower number (None: all of them, and what was set aside)."""
    if number is None:
        files.remove(directory / RESERVE)
    for path in sorted(directory.glob("*.wal")):
        if number is None or int(path.stem) < number:
            files.remove(path)


async def _in_thread(
    work: Callable[..., Result], *arguments: Any, undo: Callable[[Result], None] | None = None
) -> Result:
    """Run it on another thread, to its end also when the caller is cancelled; `undo` then takes its result."""
    job = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        await asyncio.wait([job])
        if undo is not None and job.exception() is None:
            undo(job.result())
        raise
