"""What the server takes for its memory: the machine's, or its control group's."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from gem_server.process_memory import DEFAULT_SHARE, KEPT, default_limit, group_limits

GIB = 1024**3


def made(root: Path, group: str, **limits: str) -> Path:
    """A file system in which this process is in `group`, and groups have limits (`a__b` is the file a/b)."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(group)
    for name, limit in limits.items():
        file = root / "sys/fs/cgroup" / name.replace("__", "/").replace("max", "memory.max")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(limit + "\n")
    return root


def test_a_systemd_unit_has_the_limit_of_its_group(tmp_path: Path) -> None:
    root = made(tmp_path, "0::/system.slice/gemps-server.service\n", system__max="max")
    unit = root / "sys/fs/cgroup/system.slice/gemps-server.service"
    unit.mkdir(parents=True)
    (unit / "memory.max").write_text("2147483648\n")
    assert group_limits(root) == [2 * GIB]


def test_a_limit_of_a_group_around_it_holds_as_well(tmp_path: Path) -> None:
    root = made(tmp_path, "0::/a/b\n", a__max=str(GIB), a__b__max=str(2 * GIB))
    assert min(group_limits(root)) == GIB


def test_a_container_sees_its_own_group_at_the_root(tmp_path: Path) -> None:
    assert group_limits(made(tmp_path, "0::/\n", max=str(GIB))) == [GIB]


def test_a_container_of_control_groups_version_1_too(tmp_path: Path) -> None:
    root = made(tmp_path, "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/\n")
    (root / "sys/fs/cgroup/memory").mkdir(parents=True)
    (root / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text(f"{GIB}\n")
    assert group_limits(root) == [GIB]


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert group_limits(tmp_path) == []


@pytest.mark.parametrize("files", [{}, {"user.slice__max": "max"}])
def test_without_a_limit_the_default_is_a_share_of_the_machines_memory(tmp_path: Path, files: dict[str, str]) -> None:
    root = made(tmp_path, "0::/user.slice\n", **files)
    assert default_limit(root) == int(DEFAULT_SHARE * psutil.virtual_memory().total)


def test_the_default_is_a_share_of_what_there_is() -> None:
    assert 0 < default_limit() <= DEFAULT_SHARE * psutil.virtual_memory().total


# Each thread uses 12 MiB in blocks of 64 KiB, as gRPC's do for what they read, and frees them.
THREADS_THAT_READ = """
import ctypes, threading
from gem_server.process_memory import anonymous_bytes, keep_what_messages_used
keep_what_messages_used()
c = ctypes.CDLL(None)
c.malloc.restype = ctypes.c_void_p
c.malloc.argtypes, c.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
before, freed, end = anonymous_bytes(), threading.Barrier(9), threading.Event()

def read():
    blocks = [c.malloc(65536) for _ in range(192)]
    for block in blocks:
        ctypes.memset(block, 1, 65536)
    for block in blocks:
        c.free(block)
    freed.wait()
    end.wait()

threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads:
    thread.start()
freed.wait()
print(anonymous_bytes() - before)
end.set()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc is configured")
def test_memory_that_threads_have_freed_is_kept_once_and_not_by_each() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", THREADS_THAT_READ]
    told = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=60)
    assert int(told.stdout) < KEPT + 8 * 1024**2
