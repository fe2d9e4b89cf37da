import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The benchmarks are scripts beside packages of their own, and their folder is on the path when they run.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))


@pytest.fixture(autouse=True)
def handler_of_sigterm() -> Iterator[None]:
    """Programs that a test runs in this process replace it."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
