"""Follows a server's status on a thread of its own, so that the main thread stays free for children and signals."""

import contextlib
import queue
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gem_cli import status_view
from gem_cli.status_view import Status

if TYPE_CHECKING:
    from gem_worker.client import Observer

History = Mapping[str, Any]

# Seconds between two looks at the history: what a run that is killed may lack of it.
HISTORY_INTERVAL = 15.0


class Follower:
    """Collects the reports of WatchStatus, and the history now and then.

    It stays in the stream, for which a server that ends with its run waits, until the run is finished, everybody has
    left and `may_leave` is set; then it has the last report and the whole history. `take` and the like are for one
    thread; the stream is read by another.
    """

    def __init__(self, address: str, interval: float) -> None:
        """Open the stream; `interval` in seconds between reports."""
        from gem_worker.client import ClientError, Observer

        self._unreachable = ClientError
        self._observer = Observer(address, on_event=lambda _: None)  # what it would log, the children tell
        self._interval = interval
        self._reports: queue.SimpleQueue[Status] = queue.SimpleQueue()
        self._histories: queue.SimpleQueue[History] = queue.SimpleQueue()
        self._history_due = time.monotonic() + HISTORY_INTERVAL
        self.may_leave = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="status", daemon=True)
        self._thread.start()

    def take(self, timeout: float) -> Status | None:
        """Return the next report; None when there was none for `timeout` seconds."""
        try:
            return self._reports.get(timeout=timeout)
        except queue.Empty:
            return None

    def take_history(self) -> History | None:
        """Return the newest history; None when there is none that was not taken."""
        newest = None
        while not self._histories.empty():
            newest = self._histories.get()
        return newest

    def now(self) -> Status | None:
        """Ask for a report, and the history, out of turn; None when the server does not answer."""
        try:
            with self._another() as observer:  # an observer is for one thread
                self._keep_history(observer)
                return observer.get_status()
        except self._unreachable:
            return None

    def close(self) -> None:
        """End the stream, once what the server sent before it ended is read; `take` gives what is left."""
        self._closed.set()
        self._thread.join(timeout=5)
        self._observer.close()

    def _follow(self) -> None:
        while not self._closed.is_set():
            try:
                for status in self._observer.watch_status(self._interval, stay=True):
                    self._reports.put(status)
                    if time.monotonic() >= self._history_due:
                        self._keep_history(self._observer)
                    if status_view.state(status) == "FINISHED" and self.may_leave.is_set():
                        self._read_to_the_end()
                        return
            except self._unreachable:
                self._closed.wait(0.5)  # the server is busy or gone; whether it is gone, its process tells

    def _read_to_the_end(self) -> None:
        """Take the reports up to the one that says that everybody has left, and then the history."""
        with self._another() as observer:
            for status in observer.watch_status(self._interval):
                self._reports.put(status)
            self._keep_history(observer)

    def _keep_history(self, observer: "Observer") -> None:
        self._history_due = time.monotonic() + HISTORY_INTERVAL
        with contextlib.suppress(self._unreachable):  # a server that refuses it still has reports
            self._histories.put(observer.get_history())

    def _another(self) -> "Observer":
        from gem_worker.client import Observer

        return Observer(self._observer.address, on_event=lambda _: None)
