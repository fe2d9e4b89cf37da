"""SIGTERM in a test's own process."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from gem_worker.termination import TerminatedError, termination


@contextmanager
def default_handlers() -> Iterator[None]:
    """As in a worker's process, and at the end as before. One that got SIGTERM ends: its handler stays."""
    before = {
        number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
    }
    try:
        yield
        assert signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, termination)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ends_terminated(code: int = 0) -> Iterator[None]:
    """The block must end with TerminatedError."""
    with pytest.raises(TerminatedError) as found:
        yield
    assert found.value.code == code


def terminate() -> None:
    """SIGTERM to this process."""
    os.kill(os.getpid(), signal.SIGTERM)
