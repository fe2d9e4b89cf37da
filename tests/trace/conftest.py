"""Servers that record, and a disk that has little room."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.small_disk import small_disk_at
from tests.wire.conftest import serve

__all__ = ["serve", "small_disk"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk_at(tmp_path / "disk", "32k") as place:
        yield place
