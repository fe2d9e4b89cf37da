"""Memory of this process and its limits."""

import contextlib
import ctypes
import os
from pathlib import Path

import psutil

DEFAULT_SHARE = 0.8
# glibc's malloc.h. MAPPED_FROM: above gRPC messages, below large models' vectors, which are unmapped when freed. KEPT:
# messages in flight, for each arena.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
MAPPED_FROM, KEPT = 8 << 20, 16 << 20


def anonymous_bytes() -> int:
    """Resident anonymous memory (if not on Linux: all), in bytes."""
    with contextlib.suppress(OSError, ValueError):  # not Linux
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return int(psutil.Process().memory_info().rss)


def keep_what_messages_used() -> None:
    """Make glibc's malloc reuse message-sized memory, to avoid page faults, unless the environment configures it."""
    if any(name in os.environ for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")):
        return
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM)
        mallopt(_M_TRIM_THRESHOLD, KEPT)
        if "MALLOC_ARENA_MAX" not in os.environ:
            mallopt(_M_ARENA_MAX, 1)


def default_limit(root: Path = Path("/")) -> int:
    """80 % of `total_bytes`."""
    return int(total_bytes(root) * DEFAULT_SHARE)


def total_bytes(root: Path = Path("/")) -> int:
    """The smaller of the machine's and the control group's memory, in bytes."""
    return min([psutil.virtual_memory().total, *group_limits(root)])


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
