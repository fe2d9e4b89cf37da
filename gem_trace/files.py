"""A trace's file as memory, also where it is larger than the machine's."""

import mmap
from pathlib import Path


def map_file(path: Path) -> memoryview:
    """The file's bytes, read-only; they stay mapped for as long as a view of them is there. Raises OSError."""
    with path.open("rb") as stream:
        if not path.stat().st_size:
            return memoryview(b"")
        return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
