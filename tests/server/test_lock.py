"""One data directory, one server."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gem_server.durability.lock import DirectoryLock
from gem_server.errors import StartupError

HOLDER = """
import sys
from pathlib import Path
from gem_server.durability.lock import DirectoryLock
DirectoryLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_second_server_is_told_which_process_has_the_directory(tmp_path: Path) -> None:
    first, second = DirectoryLock(tmp_path), DirectoryLock(tmp_path)
    first.acquire()
    with pytest.raises(StartupError, match=rf"in use by another server \(pid {os.getpid()}\): stop that one"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    lock = DirectoryLock(tmp_path)
    with pytest.raises(StartupError, match=f"pid {holder.pid}"):
        lock.acquire()
    holder.kill()
    holder.communicate()
    lock.acquire()
    assert (tmp_path / "lock").read_text() == f"pid {os.getpid()}\n"
    lock.release()
