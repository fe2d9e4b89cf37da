"""Durability of several shards: their logs' records end at the same clocks, and their checkpoints have the same."""

import asyncio
from collections.abc import Callable

from typing_extensions import override

from gem_server.durability.agreement import Agreement
from gem_server.durability.files import RETRY_SECONDS
from gem_server.durability.log import Log
from gem_server.errors import Reason, RefusedError
from gem_server.shards.operations import (
    CheckpointComplete,
    CheckpointCut,
    CheckpointNeeded,
    CheckpointWritten,
    DurableEverywhere,
    Operation,
    RecordEnded,
    RecordWritten,
    Report,
)


class PrimaryAgreement(Agreement):
    """Decides. `send`: to all secondaries, 1 to `count` - 1."""

    def __init__(self, count: int, send: Callable[[Operation], None]) -> None:
        self._send = send
        self._durable = dict.fromkeys(range(count), 0)
        self._checkpoint = 0  # the newest one's number
        self._missing: set[int] = set()
        self._lost = 0  # a secondary
        self._written = asyncio.Event()
        self._error = ""
        self.log: Log | None = None

    @override
    def group_closed(self, clock: int) -> None:
        self._send(RecordEnded(clock))

    @override
    def written(self, clock: int) -> int:
        return self._advance(0, clock)

    def record_written(self, index: int, clock: int) -> None:
        """A secondary's log has `clock` on its disk."""
        durable = self._advance(index, clock)
        if self.log is not None:
            self.log.show(durable)

    @override
    def cut(self) -> None:
        self._checkpoint += 1
        self._missing = set(self._durable) - {0}
        self._error = ""
        if not self._lost:
            self._written.clear()
        self._send(CheckpointCut(self._checkpoint))

    def is_newest(self, number: int) -> bool:
        """Whether no checkpoint began after this one."""
        return number == self._checkpoint

    def lost(self, index: int) -> None:
        """A secondary has disconnected: no checkpoint will be complete."""
        self._lost = index
        self._written.set()

    @override
    async def wait_checkpoint(self) -> None:
        await self._written.wait()
        if self._lost:
            raise RefusedError(Reason.DRAINING, f"shard {self._lost} has disconnected", retry_after=RETRY_SECONDS)
        if self._error:
            raise RefusedError(
                Reason.STORAGE_FULL,
                f"{self._error}: see to the disk of its --data-dir, and training continues",
                retry_after=RETRY_SECONDS,
            )
        self._send(CheckpointComplete(self._checkpoint))

    def checkpoint_written(self, index: int, number: int, error: str) -> None:
        """A secondary wrote a checkpoint, or could not."""
        if number != self._checkpoint:
            return  # given up here
        self._missing.discard(index)
        if error:
            self._error = f"shard {index} could not write the checkpoint ({error})"
        if not self._missing:
            self._written.set()

    def _advance(self, index: int, clock: int) -> int:
        before = min(self._durable.values())
        self._durable[index] = max(clock, self._durable[index])
        durable = min(self._durable.values())
        if durable > before:
            self._send(DurableEverywhere(durable))
        return durable


class SecondaryAgreement(Agreement):
    """Follows. `report`: to the primary."""

    closes_groups = False

    def __init__(self, report: Callable[[Report], None]) -> None:
        self._report = report
        self._durable = 0
        self._ordered = self._begun = 0  # checkpoints' numbers
        self._is_requested = False
        self._completing: asyncio.Future[None] | None = None
        self.log: Log | None = None

    @override
    def written(self, clock: int) -> int:
        self._report(RecordWritten(clock))
        return self._durable

    def durable_everywhere(self, clock: int) -> None:
        """All shards have `clock` on their disks."""
        self._durable = clock
        if self.log is not None:
            self.log.show(clock)

    def record_ended(self) -> None:
        """The primary's record ends here."""
        if self.log is not None:
            self.log.close_group()

    @override
    def request_checkpoint(self) -> bool:
        if not self._is_requested:
            self._is_requested = True
            self._report(CheckpointNeeded(self._ordered))
        return True

    @override
    async def wait_checkpoint(self) -> None:
        if self._begun != self._ordered:
            raise _incomplete()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._completing = future
        self._report(CheckpointWritten(self._begun, ""))
        await future

    @override
    def checkpoint_begun(self, number: int) -> None:
        self._begun = number

    @override
    def checkpoint_failed(self, error: Exception) -> None:
        self._report(CheckpointWritten(self._begun, str(error)))

    def checkpoint_cut(self, number: int) -> None:
        """A checkpoint begins; an earlier one will not be complete."""
        if self._completing is not None and not self._completing.done():
            self._completing.set_exception(_incomplete())
        self._ordered = number
        self._is_requested = False

    def checkpoint_complete(self, number: int) -> None:
        """All shards have this checkpoint."""
        if number == self._ordered and self._completing is not None and not self._completing.done():
            self._completing.set_result(None)


class CheckpointReplacedError(OSError):
    """The primary began another."""


def _incomplete() -> CheckpointReplacedError:
    return CheckpointReplacedError("not all shards wrote the checkpoint")
