"""Memory of this process, and what it may have: from /proc and the control group on Linux, psutil elsewhere."""

import contextlib
import ctypes
import os
from pathlib import Path

import psutil

DEFAULT_SHARE = 0.8
# glibc's mallopt (malloc.h). Messages, and what gRPC reads them into, are far smaller than MAPPED_FROM; the vectors of
# large models are larger, and go back to the system when they are freed. KEPT is what some gRPC streams have under
# way, and what a flood of messages leaves behind.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
MAPPED_FROM, KEPT = 8 << 20, 16 << 20


def anonymous_bytes() -> int:
    """Resident anonymous memory: what the process itself holds, without mapped files and shared regions."""
    with contextlib.suppress(OSError, ValueError):  # not Linux
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return int(psutil.Process().memory_info().rss)


def keep_what_messages_used() -> None:
    """Let freed memory of message size be used again instead of going back to the system (glibc only).

    By default malloc maps each large message afresh, and the kernel clears its pages once more, 4 KiB at a time: 5 ms
    of processor time for each commit of 4.2 million parameters. Who has set one of the thresholds in the environment
    has decided already.
    """
    if any(name in os.environ for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")):
        return
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM)
        mallopt(_M_TRIM_THRESHOLD, KEPT)


def default_limit() -> int:
    """80 % of the memory of the machine, or of the control group (container, systemd unit) if that has less."""
    return int(min(psutil.virtual_memory().total, *group_limits(Path("/"))) * DEFAULT_SHARE)


def group_limits(root: Path) -> list[int]:
    """The limits of this process's control groups and of the groups around them, in bytes (version 1 and 2).

    A container may see its own group at the root of the mount, whatever path it has outside, so every group on the way
    to the root is asked. A group without a limit says "max" (version 2) or a number beyond any machine's memory.
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
        with contextlib.suppress(OSError, ValueError):  # not there, or no limit
            limits.append(int(file.read_text(encoding="ascii")))
    return limits
