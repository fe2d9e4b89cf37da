"""Defer Ctrl-C, SIGTERM and SIGHUP inside gRPC.

A handler that raises inside gRPC can leave a lock held, which blocks the next call forever (grpcio 1.85.1). So another
thread cancels the call, and the handler runs after gRPC returns.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import FrameType
from typing import Any

from gem_worker.client.operating_system import end_signals
from gem_worker.termination import termination

_SIGNALS = (signal.SIGINT, *end_signals())


class _DeferredSignal:
    """Shared with the cancelling thread."""

    def __init__(self) -> None:
        self.pending: int | None = None
        self.cancel: Callable[[], object] | None = None
        # SimpleQueue.put is reentrant.
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def ensure_started(self) -> None:
        """Start the cancelling thread, also after a fork."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="gemps-interrupts", daemon=True)
            self._thread.start()

    def defer(self, number: int, frame: FrameType | None) -> None:
        """Signal handler: takes no lock, raises nothing."""
        self.pending = number
        self._wake.put(None)

    def _run(self) -> None:
        while True:
            self._wake.get()
            cancel = self.cancel
            if cancel is not None:
                cancel()


_deferred = _DeferredSignal()


@contextlib.contextmanager
def interrupts_wait(cancel: Callable[[], object] | None = None) -> Iterator[None]:
    """Defer signal handlers in the main thread until the block ends; `cancel` ends a blocking call."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _deferred.ensure_started()
    before: dict[int, Any] = {}
    outer = _deferred.cancel
    try:
        for number in _SIGNALS:
            handler: Any = signal.getsignal(number)
            if handler is termination and termination.is_held:
                continue
            if callable(handler) and handler != _deferred.defer:  # an outer block defers it
                before[number] = handler
                signal.signal(number, _deferred.defer)
        _deferred.cancel = cancel or outer
        if _deferred.pending is not None and cancel is not None:
            cancel()  # recorded earlier
        yield
    finally:
        _deferred.cancel = outer
        pending = _deferred.pending
        if pending in before:
            _deferred.pending = None
        try:
            _restore(list(before.items()))
        finally:
            if pending in before:
                before[pending](pending, None)


def _restore(handlers: list[tuple[int, Any]]) -> None:
    if handlers:
        number, handler = handlers.pop()
        try:
            signal.signal(number, handler)
        finally:
            _restore(handlers)
