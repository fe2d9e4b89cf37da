"""Files that others may have put in place, opened only if they are regular files.

Opening a named pipe waits until somebody writes into it, for ever and without a word; reading a device such as
/dev/zero never ends; and opening some devices has effects of its own. A path that gemps reads can lead to such things
by mistake, or because somebody who may write to its folder wants that. All reading of files that are named by settings,
or lie in data directories and run folders, goes through this module.

Pipes that this process inherited are an exception of `read_bytes` and `read_text`: a shell's `<(command)` passes one,
as /dev/fd/63, and its writer exists.
"""

import errno
import os
import re
import stat
from pathlib import Path

_INHERITED = re.compile(r"/dev/fd/\d+|/dev/stdin|/proc/self/fd/\d+")
_KINDS = (
    (stat.S_ISDIR, errno.EISDIR, "a directory"),
    (stat.S_ISFIFO, errno.EINVAL, "a named pipe (FIFO)"),
    (stat.S_ISSOCK, errno.EINVAL, "a socket"),
    (stat.S_ISCHR, errno.EINVAL, "a device"),
    (stat.S_ISBLK, errno.EINVAL, "a device"),
)


def check_regular(path: Path | str) -> None:
    """Check before a library opens the path itself. Raises OSError, whose `strerror` says what lies there instead."""
    _check(path, os.stat(path).st_mode)


def open_regular(path: Path | str, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Open a regular file; return the descriptor.

    Args:
        path: where; links are followed.
        flags: as in `os.open`; with O_CREAT the file may be absent.
        mode: of a file that is created.

    Raises:
        OSError: as `os.open`; and, without waiting, if something else than a regular file lies there.
    """
    try:
        check_regular(path)  # before opening: opening a device may have effects
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    # It may have been replaced since. Without O_NONBLOCK, opening a pipe would wait; regular files ignore the flag.
    extra = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # Windows has one, others the other
    descriptor = os.open(path, flags | extra, mode)
    try:
        _check(path, os.fstat(descriptor).st_mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_bytes(path: Path | str) -> bytes:
    """All bytes of a regular file, or of a pipe that this process inherited. Raises OSError."""
    if _INHERITED.fullmatch(os.fspath(path)):
        return Path(path).read_bytes()
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read()


def read_text(path: Path | str) -> str:
    """The UTF-8 text of such a file, with line ends as Python's text files have. Raises OSError, ValueError."""
    return read_bytes(path).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def _check(path: Path | str, mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    for is_kind, number, kind in _KINDS:
        if is_kind(mode):
            raise OSError(number, f"it is {kind}, and not a regular file", os.fspath(path))
    raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
