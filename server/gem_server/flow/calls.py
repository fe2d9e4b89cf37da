"""Calls that the server can end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Call:
    """A running call. Create it in its task; end it from its event loop."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a Call is made inside the task that serves it")
        self._task = task
        self._reason: Exception | None = None
        self._over = False
        self.streaming = 0  # open readers

    def end(self, reason: Exception) -> None:
        """Raise `reason` in the call's task, unless over or ending."""
        if not self._over and self._reason is None:
            self._reason = reason
            self._task.cancel()

    @asynccontextmanager
    async def ending(self) -> AsyncIterator[None]:
        """Convert the cancellation of `end`, and no other, to its reason."""
        try:
            yield
        except asyncio.CancelledError:
            if self._reason is None:
                raise
            self._task.uncancel()
            try:
                raise self._reason from None
            finally:
                # Its traceback keeps frames, and uploads, alive.
                self._reason = None
        finally:
            self._over = True
