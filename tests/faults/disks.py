"""Disks that fail as real ones do, to be put under a server's data directory."""

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from gem_server.durability.files import Files


class ForgetfulDisk(Files):
    """Keeps apart what was synced: what would be there after a loss of power at any moment, at its worst.

    A file's bytes count from its own sync on, as they were then; a name from the sync of its directory on. (A real
    disk may have kept more; nobody may count on that.)
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._mutex = threading.Lock()
        self._bytes: dict[int, bytes] = {}
        self._names: dict[int, dict[str, tuple[str, int | str]]] = {}
        self._open: list[int] = []  # so that the number of a deleted file is not given to another one
        self._known: set[int] = set()

    def sync_data(self, descriptor: int) -> None:
        super().sync_data(descriptor)
        with self._mutex:
            size = os.fstat(descriptor).st_size
            self._keep(descriptor, os.pread(descriptor, size, 0))

    def sync(self, path: Path) -> None:
        super().sync(path)
        with self._mutex:
            descriptor = os.open(path, os.O_RDONLY)
            if path.is_dir():
                self._keep(descriptor, b"")
                self._names[os.fstat(descriptor).st_ino] = {entry.name: _described(entry) for entry in path.iterdir()}
            else:
                self._keep(descriptor, path.read_bytes())
            os.close(descriptor)

    def after_power_loss(self, target: Path) -> Path:
        """A directory as the disk would be if the power went now."""
        with self._mutex:
            self._restore(self._root.stat().st_ino, target)
        return target

    def close_all(self) -> None:
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()

    def _keep(self, descriptor: int, data: bytes) -> None:
        number = os.fstat(descriptor).st_ino
        self._bytes[number] = data
        if number not in self._known:
            self._known.add(number)
            self._open.append(os.dup(descriptor))

    def _restore(self, directory: int, target: Path) -> None:
        target.mkdir()
        for name, (kind, what) in self._names.get(directory, {}).items():
            if kind == "link":
                (target / name).symlink_to(str(what))
            elif kind == "directory":
                self._restore(int(what), target / name)
            else:
                (target / name).write_bytes(self._bytes.get(int(what), b""))


def _described(entry: Path) -> tuple[str, int | str]:
    if entry.is_symlink():
        return "link", os.readlink(entry)
    return ("directory" if entry.is_dir() else "file"), entry.stat().st_ino


class FailingDisk(Files):
    """Says so (by `error`) from the moment on when `failing` names what fails: write, sync, allocate, rename."""

    def __init__(self, error: int = errno.EIO) -> None:
        self.error = error
        self.failing: set[str] = set()

    def write(self, descriptor: int, pieces: Sequence[memoryview], offset: int) -> None:
        self._maybe("write")
        super().write(descriptor, pieces, offset)

    def sync_data(self, descriptor: int) -> None:
        self._maybe("sync")
        super().sync_data(descriptor)

    def sync(self, path: Path) -> None:
        self._maybe("sync")
        super().sync(path)

    def allocate(self, descriptor: int, length: int) -> None:
        self._maybe("allocate")
        super().allocate(descriptor, length)

    def rename(self, source: Path, target: Path) -> None:
        self._maybe("rename")
        super().rename(source, target)

    def _maybe(self, what: str) -> None:
        if what in self.failing:
            raise OSError(self.error, os.strerror(self.error))


class GatedDisk(Files):
    """Stops before it writes to the log or syncs a checkpoint while `gate` is closed; `reached`: it has."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()

    def write(self, descriptor: int, pieces: Sequence[memoryview], offset: int) -> None:
        self._wait()
        super().write(descriptor, pieces, offset)

    def sync(self, path: Path) -> None:
        self._wait()
        super().sync(path)

    def _wait(self) -> None:
        if not self.gate.is_set():
            self.reached.set()
            self.gate.wait()
