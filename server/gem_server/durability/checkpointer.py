"""When checkpoints are written: every interval while training, when the run is finished, when asked, and at the end.

The state is taken by the applying task between two requests, so that parameters, ledger and budget are of one point;
the files are written on another thread, so that commits go on.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gem_server.durability import checkpoint
from gem_server.durability.checkpoint import Checkpoint
from gem_server.flow.applying import Applier
from gem_server.flow.calls import Call
from gem_server.flow.requests import CutRequest
from gem_server.state.central_variable import CentralVariable, Version

logger = logging.getLogger(__name__)


class Checkpointer:
    """Writes checkpoints of a run to a data directory, one at a time."""

    def __init__(
        self,
        *,
        data_dir: Path,
        central: CentralVariable,
        applier: Applier,
        describe: Callable[[], dict[str, Any]],
        clock: Callable[[], float],
    ) -> None:
        self._data_dir = data_dir
        self._central = central
        self._applier = applier
        self._describe = describe
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()
        self.newest: Path | None = None
        self.newest_version: Version | None = None
        self.written_at = 0.0

    async def write_every(self, seconds: float, now: asyncio.Event) -> None:
        """Write one every so many seconds (0: never), and as soon as `now` is set, when there is something new.

        A failure is logged, and tried again.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(now.wait(), seconds or None)
            now.clear()
            if self._central.clock and self._central.version != self.newest_version:
                try:
                    await self.write()
                except Exception:
                    logger.exception("the checkpoint failed; the one before it stands")

    async def write(self) -> Path:
        """Write one now, while commits go on. Raises OSError, or TOO_MANY when two older versions are being read."""
        async with self._one_at_a_time:
            call = Call()
            async with call.ending():
                request = CutRequest(None, call, self._describe)
                self._applier.submit(request)
                state, reader = await request.done
                try:
                    return await self._store(reader.version, reader.parameters, reader.buffers, state)
                finally:
                    reader.close()

    async def write_last(self) -> Path:
        """Write one when the applying task has ended: nothing changes any more, and nothing is copied."""
        async with self._one_at_a_time:
            central = self._central
            return await self._store(central.version, central.parameters, central.buffers, self._describe())

    async def _store(self, version: Version, parameters: Any, buffers: bytes, state: dict[str, Any]) -> Path:
        layout = self._central.layout
        if layout is None:
            raise AssertionError("there are no parameters to write")
        whole = Checkpoint(layout, version.clock, parameters, buffers, self._central.constants, state)
        job = asyncio.ensure_future(asyncio.to_thread(checkpoint.write, self._data_dir, whole))
        try:
            self.newest = await asyncio.shield(job)
        except asyncio.CancelledError:
            await asyncio.wait([job])  # the thread cannot be stopped, and the next one must not write beside it
            raise
        self.newest_version = version
        self.written_at = self._clock()
        logger.info("checkpoint of clock %d: %s", version.clock, self.newest)
        return self.newest
