"""A running call, which the server can end from its own side while the call's task waits for its peer.

A call's task spends its life waiting for the network. To end it (superseded, stalled) it is cancelled, with the
reason left beside it; `Call.ending` then turns that cancellation, and no other, into the error that the peer is told.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Call:
    """One running call. Make it inside the call's task; end it from any other task of the same event loop."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a Call is made inside the task that serves it")
        self._task = task
        self._reason: Exception | None = None
        self._over = False
        self.streaming = 0  # readers that this call has open: parameters are on their way to the peer

    def end(self, reason: Exception) -> None:
        """Make the call's task raise `reason` where it waits; harmless when the call is over or being ended."""
        if not self._over and self._reason is None:
            self._reason = reason
            self._task.cancel()

    @asynccontextmanager
    async def ending(self) -> AsyncIterator[None]:
        """Within this context `end` works; it turns our cancellation into the reason, and leaves the peer's alone."""
        try:
            yield
        except asyncio.CancelledError:
            if self._reason is None:
                raise
            self._task.uncancel()
            try:
                raise self._reason from None
            finally:
                # Who keeps the call shall not keep, by a traceback, what frames held: uploads as large as the model.
                self._reason = None
        finally:
            self._over = True
