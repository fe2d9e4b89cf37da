"""Ctrl-C and SIGTERM while a thread is inside gRPC.

Python runs a signal's handler in the main thread, between any two instructions. A handler that raises, as that of
Ctrl-C does, may thus leave gRPC's own code between taking a lock and the block that would release it; the next call
then waits for that lock for ever (seen on grpcio 1.85.1, about once in fifty interrupts of a busy worker). So, while
the main thread is inside gRPC, a handler is not run but noted, and the call is cancelled from another thread; the
handler runs, and may raise, as soon as gRPC has been left, in the way that it provides for.
"""

import contextlib
import importlib
import signal
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
try:
    # What `signal` is made of, without what makes enums of handlers and fails at it when they are functions: that was a
    # seventh of a small commit's time.
    _plain: Any = importlib.import_module("_signal")
except ImportError:
    _plain = signal
_handler_of: Callable[[int], Any] = _plain.getsignal
_set_handler: Callable[[int, Any], Any] = _plain.signal


class _Noted:
    """What the note-taking handler writes, and the thread that cancels. One for the process, like signals."""

    def __init__(self) -> None:
        self.pending: int | None = None
        self.cancel: Callable[[], object] | None = None
        # SimpleQueue.put may be called from a signal's handler, also while it is being called.
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the cancelling thread, in this process; a forked one has lost it."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="gemps-interrupts", daemon=True)
            self._thread.start()

    def note(self, number: int, frame: FrameType | None) -> None:
        """A signal's handler: takes no lock, and raises nothing."""
        self.pending = number
        self._wake.put(None)

    def _run(self) -> None:
        while True:
            self._wake.get()
            cancel = self.cancel
            if cancel is not None:
                cancel()


_noted = _Noted()


@contextlib.contextmanager
def interrupts_wait(cancel: Callable[[], object] | None = None) -> Iterator[None]:
    """Let handlers that may raise wait until the block is left; `cancel` makes a block that waits for the peer end.

    Only Python's main thread runs handlers; in others this does nothing. Signals that are ignored, or have the system's
    default action, are left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _noted.start()
    before: dict[int, Any] = {}
    outer = _noted.cancel
    try:
        for number in _SIGNALS:
            handler = _handler_of(number)
            if callable(handler) and handler != _noted.note:  # within another such block it waits already
                before[number] = handler
                _set_handler(number, _noted.note)
        _noted.cancel = cancel or outer
        if _noted.pending is not None and cancel is not None:
            cancel()  # noted before there was anything to cancel
        yield
    finally:
        _noted.cancel = outer
        pending = _noted.pending
        if pending in before:
            _noted.pending = None
        try:
            _restore(list(before.items()))
        finally:
            if pending in before:
                before[pending](pending, None)


def _restore(handlers: list[tuple[int, Any]]) -> None:
    """Put handlers back, all of them even if one of them is run, and raises, in between."""
    if handlers:
        number, handler = handlers.pop()
        try:
            _set_handler(number, handler)
        finally:
            _restore(handlers)
