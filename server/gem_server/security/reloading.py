"""Files reloaded at run time: certificates, tokens."""

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Generic, TypeVar

Read = TypeVar("Read")

# Interval of checks, each a stat per file.
LOOK_SECONDS = 1.0

logger = logging.getLogger(__name__)


class UnusableFileError(Exception):
    """A file is invalid; the message names the fix."""


class Reloading(Generic[Read]):
    """A value read from files, reread on change. Thread-safe.

    If `read` raises UnusableFileError, the old value stays; the constructor propagates it.
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
        """Return the newest valid value; `at_once`: check now."""
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
            return  # replaced meanwhile: they may not match, retry
        self._seen, self._value = found, value
        logger.info("read again, because they changed: %s", names)

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_identity(path) for path in self._paths]


def read_text(path: Path, what: str) -> str:
    """Return the file's text. Raises UnusableFileError."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UnusableFileError(f"{what} {path} cannot be read ({error.strerror}): check its path and rights") from None
    except UnicodeDecodeError:
        raise UnusableFileError(f"{what} {path} is no text file: give the right one") from None


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Changes with the file; None: missing."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
