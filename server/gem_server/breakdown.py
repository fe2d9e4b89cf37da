"""The error that stops the server."""

import asyncio
import contextlib


class Breakdown:
    """The first fatal error."""

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._happened = asyncio.Event()

    def __bool__(self) -> bool:
        return self._error is not None

    def note(self, error: BaseException) -> None:
        """Record the first error."""
        if self._error is None:
            self._error = error
            self._happened.set()

    def check(self) -> None:
        """Raise the recorded error."""
        if self._error is not None:
            raise self._error

    async def watch(self, seconds: float) -> None:
        """Wait for `seconds`, or until an error, which it raises."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._happened.wait(), seconds)
        self.check()
