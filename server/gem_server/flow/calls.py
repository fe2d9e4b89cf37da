"""Calls that the server can end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gem_server.errors import Reason, RefusedError


class TornUploadError(RefusedError):
    """The stream of a call ended before the footer of its upload.

    grpc.aio (1.85.1) reports a broken connection, a cancelled call and a half-closed stream alike, as the end of the
    stream. So this error says nothing about the upload itself: it ends one attempt, and the same upload may already
    arrive through another call. Only a caller that half-closed its stream can still receive the refusal, and it has a
    bug.
    """

    def __init__(self, upload: str) -> None:
        super().__init__(
            Reason.OUT_OF_ORDER,
            f"the stream was half-closed before {upload}'s footer, and nothing changed: send the footer first",
        )


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

    @property
    def reason(self) -> Exception | None:
        """Why the server ends this call. None if it does not end it; then a cancellation comes from the caller."""
        return self._reason

    def end(self, reason: Exception) -> None:
        """Raise `reason` in the call's task, unless the task has ended or the call is ending already."""
        if not self._over and self._reason is None:
            self._reason = reason
            self._task.cancel()

    @asynccontextmanager
    async def ending(self) -> AsyncIterator[None]:
        """Context that raises the reason of `end` in place of the cancellation which `end` caused."""
        try:
            yield
        except asyncio.CancelledError:
            if self._reason is None:
                raise
            self._task.uncancel()
            try:
                raise self._reason from None
            finally:
                # The error's traceback would keep frames, and so uploads, alive.
                self._reason = None
        finally:
            self._over = True
