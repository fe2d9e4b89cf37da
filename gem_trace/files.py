"""Memory-mapped files and file locks."""

import mmap
import os
import sys
from pathlib import Path

from gem_core.regular_files import open_regular


def map_file(path: Path) -> memoryview:
    """Map a file read-only while views of it exist. Raises OSError."""
    with os.fdopen(open_regular(path), "rb") as stream:
        if not path.stat().st_size:
            return memoryview(b"")
        return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))


def lock(descriptor: int) -> bool:
    """Lock a file until the descriptor closes; False if already locked. No-op on Windows."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
