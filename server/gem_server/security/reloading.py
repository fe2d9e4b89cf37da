"""Files that may be replaced while the server runs: certificates are renewed, tokens are changed."""

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Generic, TypeVar

Read = TypeVar("Read")

# Looking costs a stat a file. A second is soon enough for a certificate, and rare enough for a slow network disk.
LOOK_SECONDS = 1.0

logger = logging.getLogger(__name__)


class UnusableFileError(Exception):
    """A file is not what it should be; the message names it, and the fix."""


class Reloading(Generic[Read]):
    """What was made of some files, made again when one of them has changed. Thread-safe.

    Files that cannot be used do not replace what was there: that is told once, and they are read again when they change
    again. `read` makes the value and raises UnusableFileError; the first reading's error is the caller's to handle.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], Read], clock: Callable[[], float] = monotonic) -> None:
        self._paths = tuple(paths)
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._seen = self._look()
        self._looked_at = clock()
        self._value = read()

    def current(self, at_once: bool = False) -> Read:
        """The newest value that could be made; `at_once`: of the files as they are now, not a second ago."""
        with self._lock:
            now = self._clock()
            if at_once or now - self._looked_at >= LOOK_SECONDS:
                self._looked_at = now
                self._look_again()
            return self._value

    def _look_again(self) -> None:
        found = self._look()
        if found == self._seen:
            return
        names = ", ".join(str(path) for path in self._paths)
        try:
            value = self._read()
        except UnusableFileError as error:
            self._seen = found
            logger.error("%s. What was read before stays in force", error)
            return
        if self._look() != found:
            return  # replaced while they were read: they may not belong together, so look again
        self._seen, self._value = found, value
        logger.info("read again, because they changed: %s", names)

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_identity(path) for path in self._paths]


def read_text(path: Path, what: str) -> str:
    """The file's text. Raises UnusableFileError."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UnusableFileError(f"{what} {path} cannot be read ({error.strerror}): check its path and rights") from None
    except UnicodeDecodeError:
        raise UnusableFileError(f"{what} {path} is no text file: give the right one") from None


def _identity(path: Path) -> tuple[int, int, int] | None:
    """What differs when a file was written or replaced; None when it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
