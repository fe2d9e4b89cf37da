"""Files reloaded at run time."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Generic, TypeVar

from gem_core import regular_files

Read = TypeVar("Read")

# Between checks, each a stat per file.
LOOK_SECONDS = 1.0
# `newest` then returns the old value.
READ_PATIENCE_SECONDS = 1.0

logger = logging.getLogger(__name__)


class UnusableFileError(Exception):
    """A file is invalid; the message names the fix."""


class WatchedFiles(Generic[Read]):
    """A value read from files, reread on change. Thread-safe.

    If `read` raises UnusableFileError, the old value stays; the constructor propagates it.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], Read], clock: Callable[[], float] = monotonic) -> None:
        self._paths = tuple(paths)
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._seen = self._identities()
        self._checked_at = clock()
        self._value = read()
        self.error = ""  # why the newest files cannot be used; empty: the value is theirs
        self._reading: asyncio.Task[Read] | None = None
        self._wait_until = 0.0  # event loop time

    def current(self, at_once: bool = False) -> Read:
        """The newest valid value; `at_once`: check now."""
        with self._lock:
            now = self._clock()
            if at_once or now - self._checked_at >= LOOK_SECONDS:
                self._checked_at = now
                self._reread_if_changed()
            return self._value

    async def newest(self) -> Read:
        """Return what `current` returns, read on a shared thread. If this is slow, return the old value."""
        loop = asyncio.get_running_loop()
        if self._reading is None and self._clock() - self._checked_at >= LOOK_SECONDS:
            self._reading = loop.create_task(asyncio.to_thread(self.current))
            self._reading.add_done_callback(self._on_read)
            self._wait_until = loop.time() + READ_PATIENCE_SECONDS
        if self._reading is not None:
            await asyncio.wait((self._reading,), timeout=max(0.0, self._wait_until - loop.time()))
        return self._value

    def _on_read(self, reading: "asyncio.Task[Read]") -> None:
        self._reading = None
        if not reading.cancelled() and (error := reading.exception()) is not None:
            logger.error("files could not be read again, and the old ones stay in force", exc_info=error)

    def _reread_if_changed(self) -> None:
        found = self._identities()
        if found == self._seen:
            return
        names = ", ".join(str(path) for path in self._paths)
        try:
            value = self._read()
        except UnusableFileError as error:
            self._seen, self.error = found, str(error)
            logger.error("%s. What was read before stays in force", error)
            return
        if self._identities() != found:
            return  # replaced meanwhile: retry
        self._seen, self._value, self.error = found, value, ""
        logger.info("read again, because they changed: %s", names)

    def _identities(self) -> list[tuple[int, int, int] | None]:
        return [_identity(path) for path in self._paths]


def read_text(path: Path, what: str) -> str:
    """The file's text. Raises UnusableFileError."""
    try:
        return regular_files.read_text(path)
    except OSError as error:
        raise UnusableFileError(f"{what} {path} cannot be read ({error.strerror}): check its path and rights") from None
    except UnicodeDecodeError:
        raise UnusableFileError(f"{what} {path} is no text file: give the right one") from None


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
