"""Every change that durability makes to files goes through here, and nothing else is done here.

So a test can put a disk in its place that is full, that fails, or that forgets what was not synced. Reading is left to
those who read. All of it may block: call it from a thread where that matters.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from gem_server.errors import Reason, Refusal

# "No room", as disks and quotas say it: room may come back. Everything else means that the disk cannot be trusted.
_FULL = (errno.ENOSPC, errno.EDQUOT)
RETRY_SECONDS = 2.0


def is_full(error: OSError) -> bool:
    """Whether the disk is merely full."""
    return error.errno in _FULL


def storage_full(what: str, error: OSError) -> Refusal:
    """What a caller is told when there is no room."""
    return Refusal(
        Reason.STORAGE_FULL,
        f"{what}: {error.strerror}; free some room on the disk of --data-dir, and it goes on by itself",
        retry_after=RETRY_SECONDS,
    )


def storage_failed() -> Refusal:
    """What a caller is told when the disk has failed, and the server is about to stop."""
    return Refusal(
        Reason.DRAINING, "the server's disk has failed, and it stops: try again when it is back", retry_after=1.0
    )


class StorageFailure(Exception):  # noqa: N818 - a name for what happened to the disk
    """A write or a sync failed, and not for want of room: nothing may be acknowledged any more."""


class Files:
    """The file system, as durability uses it. All methods raise OSError."""

    def make_directory(self, path: Path) -> None:
        """Make a directory that only its owner can read, and its parents."""
        path.mkdir(parents=True, exist_ok=True, mode=0o700)

    def create(self, path: Path) -> int:
        """Make a file that must not exist yet, readable by its owner alone; returns its descriptor."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def allocate(self, descriptor: int, length: int) -> None:
        """Set blocks aside for the first `length` bytes; what was not written reads as zeros."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, length)
        else:  # macOS: writing zeros does the same, slowly
            zeros = bytes(1 << 20)
            at = os.fstat(descriptor).st_size
            while at < length:
                at += os.pwrite(descriptor, zeros[: length - at], at)

    def write(self, descriptor: int, pieces: Sequence[memoryview], offset: int) -> None:
        """Write all the pieces (of bytes) one behind the other."""
        left = [piece for piece in pieces if piece.nbytes]
        while left:
            written = os.pwritev(descriptor, left, offset)
            offset += written
            while left and written >= left[0].nbytes:
                written -= left.pop(0).nbytes
            if written:
                left[0] = left[0][written:]

    def sync_data(self, descriptor: int) -> None:
        """What was written to it is on the disk when this returns."""
        getattr(os, "fdatasync", os.fsync)(descriptor)

    def free_bytes(self, directory: Path) -> int:
        """Room on the disk of this directory that nobody has yet."""
        return shutil.disk_usage(directory).free

    def close(self, descriptor: int) -> None:
        """Close a descriptor of `create`."""
        os.close(descriptor)

    def sync(self, path: Path) -> None:
        """A file's bytes, or a directory's names, are on the disk when this returns."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file or directory another name, in one step, in place of what had it."""
        source.replace(target)

    def link(self, link: Path, target: Path) -> None:
        """Make a symbolic link."""
        link.symlink_to(target, target_is_directory=True)

    def remove(self, path: Path) -> None:
        """Delete a file, or a directory with all that is in it; harmless when it is not there, or cannot be deleted."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
