"""Servers that record, and a disk that has little room."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.wire.conftest import serve

__all__ = ["serve", "small_disk"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """32 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", place], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"mounting a small file system needs rights: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", place], check=True)
