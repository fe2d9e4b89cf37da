"""Memory of this process, and what it may have: from /proc and the control group on Linux, psutil elsewhere."""

import contextlib
from pathlib import Path

import psutil

DEFAULT_SHARE = 0.8


def anonymous_bytes() -> int:
    """Resident anonymous memory: what the process itself holds, without mapped files and shared regions."""
    with contextlib.suppress(OSError, ValueError):  # not Linux
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return int(psutil.Process().memory_info().rss)


def default_limit() -> int:
    """80 % of the memory of the machine, or of the control group if that is smaller."""
    total = int(psutil.virtual_memory().total)
    with contextlib.suppress(OSError, ValueError):  # no control group, or no limit ("max")
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return int(total * DEFAULT_SHARE)
