"""Servers that record, and files that have little room."""

import resource
import signal
from collections.abc import Iterator

import pytest

from tests.wire.conftest import serve

__all__ = ["serve", "small_files"]


@pytest.fixture
def small_files() -> Iterator[None]:
    """Files of this process have room for 8 KiB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)
