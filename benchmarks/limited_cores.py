"""A share of one core for a process, by a control group of version 1 or 2; needs root."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VERSION_1, VERSION_2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
# Short, so that a limited process is slow, rather than fast and then stopped. Linux takes no quota below 1 ms.
PERIOD_MICROSECONDS = 10_000


@contextmanager
def limited_core(pid: int, share: float) -> Iterator[None]:
    """Limit a process and its threads to `share` of a core, at least 0.1, for as long as the block."""
    quota = round(share * PERIOD_MICROSECONDS)
    if VERSION_1.exists():
        root, limits = VERSION_1, {"cpu.cfs_period_us": f"{PERIOD_MICROSECONDS}", "cpu.cfs_quota_us": f"{quota}"}
    else:
        root, limits = VERSION_2, {"cpu.max": f"{quota} {PERIOD_MICROSECONDS}"}
        (root / "cgroup.subtree_control").write_text("+cpu")
    group = root / f"gemps-{os.getpid()}-{pid}"
    group.mkdir()
    try:
        for name, value in limits.items():
            (group / name).write_text(value)
        (group / "cgroup.procs").write_text(f"{pid}")
        yield
    finally:
        (root / "cgroup.procs").write_text(f"{pid}")  # a group with processes cannot be removed
        group.rmdir()
