"""Limits calls before their first message."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from gem_server.errors import Reason, RefusedError

# Timeouts: usual, and the oldest's while more than CROWD wait.
PATIENCE_SECONDS, CROWDED_SECONDS = 30.0, 1.0
CROWD = 128
RETRY_SECONDS = 1.0

Message = TypeVar("Message")


class FirstMessages:
    """Bounds waits for first messages, which occupy gRPC's buffers."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Timeout, None] = {}

    async def wait(self, reading: Awaitable[Message]) -> Message:
        """The first message. Raises STALLED."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS) as patience:
                self._waiting[patience] = None
                self._hurry()
                try:
                    return await reading
                finally:
                    self._waiting.pop(patience, None)
        except TimeoutError:
            raise RefusedError(
                Reason.STALLED,
                "the call's first message did not come in time: open a call when there is something to send",
                retry_after=RETRY_SECONDS,
            ) from None

    def _hurry(self) -> None:
        if len(self._waiting) > CROWD:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            if (when := oldest.when()) is not None and not oldest.expired():
                oldest.reschedule(when - PATIENCE_SECONDS + CROWDED_SECONDS)
