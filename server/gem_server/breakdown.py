"""The failure after which a server must stop, for whoever waits for one."""

import asyncio
import contextlib


class Breakdown:
    """The first such failure, if there was one. The event loop's thread only."""

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._happened = asyncio.Event()

    def __bool__(self) -> bool:
        return self._error is not None

    def note(self, error: BaseException) -> None:
        """This has failed; what fails after it counts no more."""
        if self._error is None:
            self._error = error
            self._happened.set()

    def check(self) -> None:
        """Raise it."""
        if self._error is not None:
            raise self._error

    async def watch(self, seconds: float) -> None:
        """Wait for that long, and raise it as soon as there is one."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._happened.wait(), seconds)
        self.check()
