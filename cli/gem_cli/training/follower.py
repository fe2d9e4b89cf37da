"""Follows a server's status."""

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

# A killed run may lack this.
HISTORY_INTERVAL = 15.0


class Follower:
    """Collects reports and history, for one thread.

    Subscribes until the run is finished, all workers have left and `may_leave` is set.
    """

    def __init__(self, address: str, interval: float) -> None:
        from gem_worker.client import ClientError, Observer

        self._unreachable = ClientError
        self._observer = Observer(address, on_event=lambda _: None)
        self._interval = interval
        self._reports: queue.SimpleQueue[Status] = queue.SimpleQueue()
        self._histories: queue.SimpleQueue[History] = queue.SimpleQueue()
        self._history_due = time.monotonic() + HISTORY_INTERVAL
        self.may_leave = threading.Event()
        self._closed = threading.Event()
        self._leaves = False
        self._thread = threading.Thread(target=self._read_reports, name="status", daemon=True)
        self._thread.start()

    def get(self, timeout: float) -> Status | None:
        """Next report; None: timeout."""
        try:
            return self._reports.get(timeout=timeout)
        except queue.Empty:
            return None

    def newest_history(self) -> History | None:
        """Newest unread history."""
        newest = None
        while not self._histories.empty():
            newest = self._histories.get()
        return newest

    def now(self) -> Status | None:
        """Request report and history now; None: no answer."""
        try:
            with self._another() as observer:  # single-threaded
                self._keep_history(observer)
                return observer.get_status()
        except self._unreachable:
            return None

    def end_session(self, worker: str, reason: str, *, comes_back: bool) -> None:
        """Tell the server that a worker's process has ended. It finds out by itself later if it may not be told."""
        with contextlib.suppress(self._unreachable), self._another() as observer:
            observer.end_session(worker, reason, comes_back=comes_back)

    def finish_run(self, reason: str) -> bool:
        """Finish a run with budget left, so that it may be resumed; return whether the server did so."""
        try:
            with self._another() as observer:
                observer.control("finish", reason, resumable=True)
        except self._unreachable:
            return False
        return True

    def close(self, *, at_once: bool = False) -> None:
        """End the stream after its next report; `get` still works."""
        self._leaves = at_once
        self._closed.set()
        self._thread.join(timeout=5)
        self._observer.close()

    def _read_reports(self) -> None:
        while not self._closed.is_set():
            try:
                for status in self._observer.watch_status(self._interval, stay=True):
                    self._reports.put(status)
                    if self._leaves:
                        return
                    if time.monotonic() >= self._history_due:
                        self._keep_history(self._observer)
                    if status_view.state(status) == "FINISHED" and self.may_leave.is_set():
                        self._read_to_the_end()
                        return
            except self._unreachable:
                self._closed.wait(0.5)

    def _read_to_the_end(self) -> None:
        with self._another() as observer:
            for status in observer.watch_status(self._interval):
                self._reports.put(status)
            self._keep_history(observer)

    def _keep_history(self, observer: "Observer") -> None:
        self._history_due = time.monotonic() + HISTORY_INTERVAL
        with contextlib.suppress(self._unreachable):
            self._histories.put(observer.get_history())

    def _another(self) -> "Observer":
        from gem_worker.client import Observer

        return Observer(self._observer.address, on_event=lambda _: None)
