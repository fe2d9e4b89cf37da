"""Memory of this process and its limits."""

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Any, ClassVar

import psutil

DEFAULT_SHARE = 0.8
# mallopt parameters (glibc's malloc.h). MAPPED_FROM is larger than gRPC messages, smaller than large models' vectors,
# which are unmapped when freed. KEPT covers messages in flight, per arena.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
MAPPED_FROM, KEPT = 8 << 20, 16 << 20
# fordblks: free bytes.
_MALLINFO2 = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _MallocInfo(ctypes.Structure):
    _fields_: ClassVar[list[tuple[str, type[ctypes.c_size_t]]]] = [(n, ctypes.c_size_t) for n in _MALLINFO2.split()]


def anonymous_bytes() -> int:
    """Resident anonymous memory (if not on Linux: all), in bytes."""
    with contextlib.suppress(OSError, ValueError):  # not Linux
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return int(psutil.Process().memory_info().rss)


def keep_what_messages_used() -> None:
    """Make glibc's malloc reuse messages' memory, unless the environment configures it."""
    if _is_configured():
        return
    with contextlib.suppress(OSError, AttributeError):  # no glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM)
        mallopt(_M_TRIM_THRESHOLD, KEPT)
        if "MALLOC_ARENA_MAX" not in os.environ:
            mallopt(_M_ARENA_MAX, 1)


class FreeMemory:
    """Malloc's free memory, which idle processes keep (glibc 2.33)."""

    def __init__(self) -> None:
        self._libc: Any = None
        self._least = 0
        if not _is_configured():
            with contextlib.suppress(OSError, AttributeError):
                libc = ctypes.CDLL(None)
                libc.mallinfo2.restype = _MallocInfo
                self._libc = libc

    def trim(self) -> None:
        """Return it if much was freed lately."""
        if self._libc is not None:
            free = self._libc.mallinfo2().fordblks
            self._least = min(self._least, free)
            if free - self._least > 2 * KEPT:
                self._libc.malloc_trim(ctypes.c_size_t(KEPT))
                self._least = free


def _is_configured() -> bool:
    return any(name in os.environ for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"))


def default_limit(root: Path = Path("/")) -> int:
    """80 % of the smaller of machine's and control group's memory."""
    return int(min([psutil.virtual_memory().total, *group_limits(root)]) * DEFAULT_SHARE)


def group_limits(root: Path) -> list[int]:
    """The memory limits of this process's control groups and their ancestors, in bytes (versions 1 and 2).

    A container may see its group at the mount's root.
    """
    files = []
    with contextlib.suppress(OSError):  # not Linux
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            group = Path(path.lstrip("/"))
            if not controllers:
                files += [root / "sys/fs/cgroup" / one / "memory.max" for one in (group, *group.parents)]
            elif "memory" in controllers.split(","):
                mount = root / "sys/fs/cgroup/memory"
                files += [mount / one / "memory.limit_in_bytes" for one in (group, *group.parents)]
    limits = []
    for file in files:
        with contextlib.suppress(OSError, ValueError):
            limits.append(int(file.read_text(encoding="ascii")))
    return limits
