"""Durability of several shards: their logs' records end at the same clocks, and their checkpoints have the same."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from gem_server.durability.agreement import Agreement
from gem_server.durability.log import Log
from gem_server.errors import RefusedError
from gem_server.shards.operations import (
    CheckpointComplete,
    CheckpointCut,
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
        self._cut_clock = 0
        self._missing: set[int] = set()
        self._lost = 0  # a secondary
        self._written = asyncio.Event()
        self._error = ""
        self.log: Log | None = None

    def group_closed(self, clock: int) -> None:
        """See Agreement."""
        self._send(RecordEnded(clock))

    def written(self, clock: int) -> int:
        """See Agreement."""
        return self._advance(0, clock)

    def record_written(self, index: int, clock: int) -> None:
        """A secondary's log has `clock` on its disk."""
        durable = self._advance(index, clock)
        if self.log is not None:
            self.log.show(durable)

    def cut(self, clock: int) -> None:
        """See Agreement."""
        self._cut_clock = clock
        self._missing = set(self._durable) - {0}
        self._error = ""
        if not self._lost:
            self._written.clear()
        self._send(CheckpointCut(clock))

    def lost(self, index: int) -> None:
        """A secondary has disconnected: no checkpoint will be complete."""
        self._lost = index
        self._written.set()

    async def wait_checkpoint(self, clock: int, path: Path) -> None:
        """See Agreement."""
        await self._written.wait()
        if self._lost:
            raise OSError(f"shard {self._lost} is not connected")
        if self._error:
            raise OSError(self._error)
        self._send(CheckpointComplete(clock))

    def checkpoint_written(self, index: int, clock: int, error: str) -> None:
        """A secondary wrote a checkpoint, or could not."""
        if clock != self._cut_clock:
            return  # given up here
        self._missing.discard(index)
        if error:
            self._error = f"shard {index}: {error}"
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
        self._cut_clock = 0
        self._completing: asyncio.Future[None] | None = None
        self.log: Log | None = None

    def written(self, clock: int) -> int:
        """See Agreement."""
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

    async def wait_checkpoint(self, clock: int, path: Path) -> None:
        """See Agreement."""
        if clock != self._cut_clock:
            raise _incomplete(clock)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._completing = future
        self._report(CheckpointWritten(clock, ""))
        await future

    def checkpoint_failed(self, clock: int, error: OSError | RefusedError) -> None:
        """See Agreement."""
        self._report(CheckpointWritten(clock, str(error)))

    def checkpoint_cut(self, clock: int) -> None:
        """A checkpoint begins; an earlier one will not be complete."""
        if self._completing is not None and not self._completing.done():
            self._completing.set_exception(_incomplete(self._cut_clock))
        self._cut_clock = clock

    def checkpoint_complete(self, clock: int) -> None:
        """All shards have this checkpoint."""
        if clock == self._cut_clock and self._completing is not None and not self._completing.done():
            self._completing.set_result(None)


def _incomplete(clock: int) -> OSError:
    return OSError(f"not all shards wrote the checkpoint of clock {clock}")
