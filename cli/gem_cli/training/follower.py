"""Follows a server's status on a thread of its own, so that the main thread stays free for children and signals."""

import queue
import threading

from gem_cli.status_view import Status


class Follower:
    """Collects the reports of WatchStatus. `take` is for one thread; the stream is read by another."""

    def __init__(self, address: str, interval: float) -> None:
        """Open the stream; `interval` in seconds between reports."""
        from gem_worker.client import ClientError, Observer

        self._unreachable = ClientError
        self._observer = Observer(address, on_event=lambda _: None)  # what it would log, the children tell
        self._interval = interval
        self._reports: queue.SimpleQueue[Status] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="status", daemon=True)
        self._thread.start()

    def take(self, timeout: float) -> Status | None:
        """Return the next report; None when there was none for `timeout` seconds."""
        try:
            return self._reports.get(timeout=timeout)
        except queue.Empty:
            return None

    def now(self) -> Status | None:
        """Ask for a report out of turn; None when the server does not answer."""
        from gem_worker.client import Observer

        try:
            with Observer(self._observer.address) as another:  # an observer is for one thread
                return another.get_status()
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
                for status in self._observer.watch_status(self._interval):
                    self._reports.put(status)
                return  # the run is finished and everybody has left
            except self._unreachable:
                self._closed.wait(0.5)  # the server is busy or gone; whether it is gone, its process tells
