"""Files as memory, also where they are larger than the machine's; and locks on them."""

import mmap
import sys
from pathlib import Path


def map_file(path: Path) -> memoryview:
    """The file's bytes, read-only; they stay mapped for as long as a view of them is there. Raises OSError."""
    with path.open("rb") as stream:
        if not path.stat().st_size:
            return memoryview(b"")
        return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))


def lock(descriptor: int) -> bool:
    """Lock a file for this process alone, for as long as the descriptor is open; False: another one has it.

    Where a system has no flock (Windows), nothing keeps two apart.
    """
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
