"""All changes to files, replaceable in tests. May block."""

import contextlib
import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from gem_server.errors import Reason, RefusedError

# Space may return; other errors are permanent.
_FULL = (errno.ENOSPC, errno.EDQUOT)
RETRY_SECONDS = 2.0


def is_full(error: OSError) -> bool:
    """Whether the disk is full."""
    return error.errno in _FULL


def storage_full(what: str, error: OSError) -> RefusedError:
    """RefusedError for a full disk."""
    return RefusedError(
        Reason.STORAGE_FULL,
        f"{what}: {error.strerror}; free some room on the disk of --data-dir, and training continues",
        retry_after=RETRY_SECONDS,
    )


def storage_failed() -> RefusedError:
    """RefusedError for a failed disk."""
    return RefusedError(
        Reason.DRAINING, "the server's disk has failed, and it stops: try again when it is back", retry_after=1.0
    )


class StorageError(Exception):
    """A write or sync failed, not for space: acknowledge nothing more."""


class Files:
    """The file system. Methods raise OSError."""

    def make_directory(self, path: Path) -> None:
        """Create a private directory and its parents."""
        path.mkdir(parents=True, exist_ok=True, mode=0o700)

    def create(self, path: Path) -> int:
        """Create a private file; return the descriptor."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def allocate(self, descriptor: int, length: int) -> None:
        """Allocate `length` bytes; unwritten ones are zeros."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, length)
        else:  # macOS: slow
            zeros = bytes(1 << 20)
            at = os.fstat(descriptor).st_size
            while at < length:
                at += os.pwrite(descriptor, zeros[: length - at], at)

    def write(self, descriptor: int, pieces: Sequence[memoryview], offset: int) -> None:
        """Write the pieces in sequence."""
        left = [piece for piece in pieces if piece.nbytes]
        while left:
            written = os.pwritev(descriptor, left, offset)
            offset += written
            while left and written >= left[0].nbytes:
                written -= left.pop(0).nbytes
            if written:
                left[0] = left[0][written:]

    def sync_data(self, descriptor: int) -> None:
        """Make written data durable."""
        getattr(os, "fdatasync", os.fsync)(descriptor)

    def free_bytes(self, directory: Path) -> int:
        """Free bytes."""
        return shutil.disk_usage(directory).free

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def sync(self, path: Path) -> None:
        """Make a file's bytes, or a directory's names, durable."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Rename atomically, replacing `target`."""
        source.replace(target)

    def link(self, link: Path, target: Path) -> None:
        """Create a symbolic link."""
        link.symlink_to(target, target_is_directory=True)

    def remove(self, path: Path) -> None:
        """Delete a file or tree, ignoring errors."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
