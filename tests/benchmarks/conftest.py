import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def handler_of_sigterm() -> Iterator[None]:
    """Programs that a test runs in this process replace it."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
