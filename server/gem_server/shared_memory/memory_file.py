"""Memory with a descriptor that another process can be given: a Linux memfd, sealed before anybody else sees it.

A file on a tmpfs could be truncated by whoever has it open, and the next access would kill the server (SIGBUS). The
size of these cannot change any more, whoever tries.
"""

import fcntl
import mmap
import os
import sys

# Linux; Python 3.11's fcntl knows all but the last, which came with Linux 5.1.
_ADD_SEALS = 1033
_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW, _SEAL_FUTURE_WRITE = 0x1, 0x2, 0x4, 0x10
_SIZE_IS_FIXED = _SEAL_SEAL | _SEAL_SHRINK | _SEAL_GROW


class MemoryFile:
    """Memory of a fixed size, all zeros at first. Pages are taken when they are first written to.

    Args:
        name: what the process's memory maps call it.
        size: bytes, at least 1.
        others_write: whether others may map it for writing; if so this process maps it read-only.

    Attributes:
        map: this process's mapping; it stays valid as long as anything made of it.

    Raises:
        OSError: this system has no such memory, or no more of it, or no more descriptors.
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
                # This mapping stays writable; no other can be made, and no write(2) goes through.
                fcntl.fcntl(self._descriptor, _ADD_SEALS, _SIZE_IS_FIXED | _SEAL_FUTURE_WRITE)
        except BaseException:
            os.close(self._descriptor)
            raise

    @property
    def descriptor(self) -> int:
        """What another process is given. Valid while this object lives."""
        return self._descriptor

    def __del__(self) -> None:
        # What is called when the last user lets go: one may be copying out of it on another thread.
        if hasattr(self, "map"):
            os.close(self._descriptor)
