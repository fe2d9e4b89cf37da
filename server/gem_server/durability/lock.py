"""Lock on DATA_DIR/lock, released when the process ends."""

import os
from pathlib import Path

from gem_core.regular_files import open_regular
from gem_server.errors import StartupError
from gem_trace.files import lock

FILE = "lock"


class DirectoryLock:
    """One directory's lock."""

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir / FILE
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Lock. Raises StartupError if locked by another server; OSError."""
        if self._descriptor is not None:
            return
        descriptor = open_regular(self.path, os.O_RDWR | os.O_CREAT)
        try:
            if not lock(descriptor):
                holder = os.pread(descriptor, 100, 0).decode("ascii", "replace").strip()
                raise StartupError(
                    f"{self.path.parent} is in use by another server ({holder or 'which has just started'}): stop that "
                    "one, or choose another --data-dir"
                )
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"pid {os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Unlock. Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
