"""Linux memfd of sealed size: truncation by a peer would kill the server (SIGBUS)."""

import fcntl
import mmap
import os
import sys

# Python 3.11's fcntl lacks FUTURE_WRITE (Linux 5.1).
_ADD_SEALS = 1033
_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW, _SEAL_FUTURE_WRITE = 0x1, 0x2, 0x4, 0x10
_SIZE_IS_FIXED = _SEAL_SEAL | _SEAL_SHRINK | _SEAL_GROW


class MemoryFile:
    """Zeroed memory of `size` bytes, allocated on first write.

    `others_write`: peers may write, and this process maps it read-only. `map` stays valid while referenced. Raises
    OSError if unsupported or if memory or descriptors run out.
    """

    def __init__(self, name: str, size: int, *, others_write: bool) -> None:
        if sys.platform != "linux":
            raise OSError("shared memory needs Linux")
        self.size = size
        self._descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._descriptor, size)
            if others_write:
                fcntl.fcntl(self._descriptor, _ADD_SEALS, _SIZE_IS_FIXED)
                self.map = mmap.mmap(self._descriptor, size, prot=mmap.PROT_READ)
            else:
                self.map = mmap.mmap(self._descriptor, size)
                # This mapping stays writable; new writable mappings and write(2) are refused.
                fcntl.fcntl(self._descriptor, _ADD_SEALS, _SIZE_IS_FIXED | _SEAL_FUTURE_WRITE)
        except BaseException:
            os.close(self._descriptor)
            raise

    @property
    def descriptor(self) -> int:
        """Descriptor for peers, valid while this object lives."""
        return self._descriptor

    def __del__(self) -> None:
        # A thread may still be copying.
        if hasattr(self, "map"):
            os.close(self._descriptor)
