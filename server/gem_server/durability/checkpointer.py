"""Scheduling of checkpoints."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gem_core import UpdateRule
from gem_server.durability import checkpoint
from gem_server.durability.agreement import Agreement
from gem_server.durability.checkpoint import Checkpoint
from gem_server.durability.files import Files, StorageError, is_full, storage_full
from gem_server.durability.log import FLOAT32_BYTES, RESERVE, Log, LogFile, remove_before
from gem_server.durability.recovery import LOG
from gem_server.errors import RefusedError
from gem_server.flow.applier import Applier
from gem_server.flow.calls import Call
from gem_server.flow.requests import CutRequest
from gem_server.state.buffers import Buffers
from gem_server.state.central_variable import CentralVariable
from gem_server.state.kept_rule import KeptRule, kept_vectors, rule_record
from gem_server.version import Version
from gem_server.waiting_notice import WaitingNotice

# After a full disk.
RETRY_SECONDS = 2.0
# A process that dies early should not lose its first minute of training.
FIRST_INTERVAL_SECONDS = 10.0

logger = logging.getLogger(__name__)


class Checkpointer:
    """Writes checkpoints, one at a time."""

    def __init__(
        self,
        *,
        data_dir: Path,
        files: Files,
        central: CentralVariable,
        rule: UpdateRule,
        applier: Applier,
        describe: Callable[[], dict[str, Any]],
        clock: Callable[[], float],
        log: Log | None,
        agreement: Agreement,
        on_failure: Callable[[StorageError], None],
    ) -> None:
        self._data_dir = data_dir
        self._files = files
        self._central = central
        self._rule = rule
        self._applier = applier
        self._describe = describe
        self._clock = clock
        self._log = log
        self._agreement = agreement
        self._complete: Path | None = None
        self._on_failure = on_failure
        self._one_at_a_time = asyncio.Lock()
        self._due = asyncio.Event()
        self._is_required = False
        self._first: list[asyncio.Future[None]] = []
        self._commits = 0
        self._notice = WaitingNotice()
        self._reported = ""  # the failure that the log has, until a checkpoint is written
        self.error = ""  # why the last attempt failed; empty: it did not
        self.newest: Path | None = None
        self.newest_version: Version | None = None
        self.written_at = 0.0

    def soon(self) -> None:
        """Request a checkpoint if anything changed."""
        self._due.set()

    def require(self) -> None:
        """Request a checkpoint even if no commit is new."""
        self._is_required = True
        self._due.set()

    def count_commit(self, limit: int) -> None:
        """Count a commit; request a checkpoint after `limit`."""
        self._commits += 1
        if self._commits >= limit:
            self._due.set()

    async def first_is_written(self) -> None:
        """Wait for the first checkpoint. Raises STORAGE_FULL."""
        if self.newest_version is None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._first.append(future)
            self.soon()
            await future

    async def write_whenever_due(self, seconds: float) -> None:
        """Write changes every `seconds` (0: only on request), and on request.

        The first interval of this process is at most `FIRST_INTERVAL_SECONDS`: it lasts until a checkpoint contains
        commits that this process has applied. After a full disk the checkpoint is tried again; after a failed disk
        this returns.
        """
        clock_at_start = max(self._central.clock, 1)  # clock 1 is the first parameters, without a commit
        while True:
            interval = interval_until_next(seconds, newest=self.newest_version, clock_at_start=clock_at_start)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._due.wait(), interval or None)
            self._due.clear()
            self._commits = 0
            is_required = self._is_required
            if self._central.clock and (is_required or self._central.version != self.newest_version):
                self._is_required = False
                try:
                    await self.write()
                except StorageError:
                    return
                except (OSError, RefusedError) as error:
                    self._report_failure(str(error))
                    self._resolve_first(error)
                    self._is_required |= is_required
                    await asyncio.sleep(RETRY_SECONDS)
                    self._due.set()

    def _report_failure(self, error: str) -> None:
        """Log why there is no checkpoint: at once, and then at growing intervals for as long as it is the same."""
        lasts = self._notice.check(self._clock(), waits=True)
        if error == self._reported and lasts is None:
            return
        self._reported = error
        stands = "the one before it stands" if self.newest is not None else "there is none yet"
        about = {"event": "no-checkpoint", "error": error}
        logger.warning("no checkpoint (%s); %s, and this one is tried again", error, stands, extra=about)

    async def write(self) -> Path:
        """Write while commits continue. Raises OSError if the disk is full, TOO_MANY, StorageError."""
        async with self._one_at_a_time:
            return await self._with_reserve(self._write_cut)

    async def write_ordered(self, number: int, begun: Callable[[], None]) -> Path:
        """Write the state of now, while the applying task waits for `begun`. Raises as `write`."""

        def cut(request: CutRequest) -> None:
            async def run() -> None:
                try:
                    await self._applier.cut(request)
                except RefusedError as refusal:
                    request.fail(refusal)
                begun()

            self._cutting = asyncio.ensure_future(run())

        async with self._one_at_a_time:
            self._agreement.checkpoint_begun(number)
            try:
                return await self._with_reserve(lambda: self._write_cut(cut))
            except Exception as error:
                self._agreement.checkpoint_failed(error)
                raise
            finally:
                begun()

    async def write_recovered(self) -> Path:
        """Write the recovered state and start a new log; delete what came after it. Raises OSError."""
        async with self._one_at_a_time:
            return await self._with_reserve(self._write_still)

    async def _with_reserve(self, write: Callable[[], Awaitable[Path]]) -> Path:
        try:
            return await self._with_log_reserve(write)
        except (OSError, RefusedError) as error:
            self.error = (isinstance(error, OSError) and error.strerror) or str(error)
            raise

    async def _with_log_reserve(self, write: Callable[[], Awaitable[Path]]) -> Path:
        if self._log is None or self._central.layout is None:
            return await write()
        latest = self._data_dir / checkpoint.LATEST
        try:
            if latest.exists():
                await self._log.room_for_checkpoint(self._central.layout, _size(latest))
            return await write()
        finally:
            if latest.exists():
                await self._log.keep_reserve(_size(latest))

    def read_disk(self) -> tuple[int, int, int]:
        """Return free bytes, bytes in the log's reserve, and bytes of the newest checkpoint (0: none).

        Asks the file system, so call it on a thread. Raises OSError.
        """
        latest, reserve = self._data_dir / checkpoint.LATEST, self._data_dir / LOG / RESERVE
        newest = _size(latest) if latest.exists() else 0
        return self._files.free_bytes(self._data_dir), reserve.stat().st_size if reserve.exists() else 0, newest

    def room_wanted(self, newest_bytes: int) -> int:
        """Return the bytes that the next checkpoint needs, if the newest one has `newest_bytes` (0: there is none)."""
        layout = self._central.layout
        if layout is None:
            return newest_bytes
        vectors = 1 + self._rule.kept_vectors
        wanted = newest_bytes or FLOAT32_BYTES * layout.parameter_count * vectors + layout.buffer_bytes
        return wanted if self._log is None else self._log.wanted_bytes(layout, wanted)

    async def _write_cut(self, submit: Callable[[CutRequest], None] | None = None) -> Path:
        call = Call()
        async with call.ending(), self._next_log() as file:
            request = CutRequest(None, call, lambda: self._describe_cut(file))
            (submit or self._applier.submit)(request)
            state, reader, rule = await request.done
            try:
                await self._log_has_begun(file)
                return await self._store(reader.version, reader.parameters, reader.buffers, state, rule, file)
            finally:
                reader.close()

    async def _write_still(self) -> Path:
        async with self._next_log() as file:
            central = self._central
            state = self._describe_and_switch(file)
            await self._log_has_begun(file)
            state_of_all = (central.version, central.parameters, central.buffers, state, self._kept_rule(), file)
            return await self._store(*state_of_all, alone=True)

    async def write_last(self) -> Path:
        """Write the final state. Call after the applying task has ended."""
        async with self._one_at_a_time:
            central = self._central
            state = self._describe_cut(None)
            rule = self._kept_rule()
            return await self._store(central.version, central.parameters, central.buffers, state, rule, None)

    def _kept_rule(self) -> KeptRule:
        return KeptRule(rule_record(self._rule), kept_vectors(self._rule, self._central.parameters))

    @asynccontextmanager
    async def _next_log(self) -> AsyncIterator[LogFile | None]:
        """Deleted if unused."""
        if self._log is None or self._central.layout is None:
            yield None
            return
        file = await self._log.prepare(self._central.layout)
        try:
            yield file
        finally:
            self._log.discard(file)

    def _describe_cut(self, file: LogFile | None) -> dict[str, Any]:
        self._agreement.cut()
        return self._describe_and_switch(file)

    def _describe_and_switch(self, file: LogFile | None) -> dict[str, Any]:
        state = self._describe()
        state["log"] = None
        if self._log is not None and file is not None:
            state["log"] = self._log.switch(file, self._central.clock)
        return state

    async def _log_has_begun(self, file: LogFile | None) -> None:
        if self._log is not None and file is not None:
            await self._log.begun(file)

    async def _store(
        self,
        version: Version,
        parameters: Any,
        buffers: Buffers,
        state: dict[str, Any],
        rule: KeptRule,
        file: LogFile | None,
        *,
        alone: bool = False,
    ) -> Path:
        layout = self._central.layout
        if layout is None:
            raise AssertionError("there are no parameters to write")
        state["rule"] = rule.record
        whole = Checkpoint(layout, version.clock, parameters, buffers.joined(), state, rule.vectors)
        write = functools.partial(
            checkpoint.write_checkpoint, keep=self._complete, alone=alone and layout.part is not None
        )
        job = asyncio.ensure_future(asyncio.to_thread(write, self._data_dir, whole, self._files))
        try:
            self.newest = await asyncio.shield(job)
        except asyncio.CancelledError:
            await asyncio.wait([job])  # the thread cannot be stopped
            raise
        except OSError as error:
            if is_full(error):
                raise
            failure = StorageError(f"a checkpoint could not be written: {error}")
            self._on_failure(failure)
            raise failure from error
        if not alone:
            await self._agreement.wait_checkpoint()
        self._complete = self.newest
        if self._log is not None and file is not None:
            self._log.release_older_files(file, version.clock)
        else:
            remove_before(self._files, self._data_dir / LOG, None)
        self.newest_version = version
        self.written_at = self._clock()
        self.error = self._reported = ""
        self._notice.check(self.written_at, waits=False)
        self._resolve_first(None)
        about = {"event": "checkpoint", "clock": version.clock, "path": str(self.newest)}
        logger.info("checkpoint of clock %d: %s", version.clock, self.newest, extra=about)
        return self.newest

    def _resolve_first(self, error: Exception | None) -> None:
        waiting, self._first = self._first, []
        for future in waiting:
            if future.done():
                continue
            if isinstance(error, OSError):
                future.set_exception(storage_full("there is no room for the first checkpoint", error))
            elif error is not None:
                future.set_exception(error)
            else:
                future.set_result(None)


def interval_until_next(seconds: float, *, newest: Version | None, clock_at_start: int) -> float:
    """Seconds until the next checkpoint.

    Args:
        seconds: the configured interval; 0: checkpoints are written on request only.
        newest: the version in the newest checkpoint, if there is one.
        clock_at_start: the clock before this process applied its first commit.
    """
    has_commits = newest is not None and newest.clock > clock_at_start
    return seconds if has_commits else min(seconds, FIRST_INTERVAL_SECONDS)


def _size(place: Path) -> int:
    return sum(file.stat().st_size for file in place.iterdir())
