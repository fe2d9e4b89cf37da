"""Reads reports."""

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from gem_cli.status_view import Status

if TYPE_CHECKING:
    from gem_worker.client import Observer

_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class History:
    """GetHistoryResponse."""

    history: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Report:
    """A RunStatus."""

    status: Status


@dataclass(frozen=True, slots=True)
class Lost:
    """Failed call; retried."""

    why: str


@dataclass(frozen=True, slots=True)
class Over:
    """The run is over; the last item."""


News: TypeAlias = History | Report | Lost | Over


class Feed:
    """Closes `observer`; only its thread calls that, and `wake` for each item."""

    def __init__(self, observer: "Observer", interval: float, wake: Callable[[], None]) -> None:
        self._observer = observer
        self._interval = interval
        self._wake = wake
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read_reports, name="live view", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._observer.close()  # aborts its call
        self._thread.join(timeout=5)

    def get_all(self) -> list[News]:
        """New items."""
        found = []
        while True:
            try:
                found.append(self._news.get_nowait())
            except queue.Empty:
                return found

    def _read_reports(self) -> None:
        from gem_worker.client import ClientError

        while not self._closed.is_set():
            try:
                self._put(History(self._observer.get_history()))
                for status in self._observer.watch_status(self._interval):
                    self._put(Report(status))
                self._put(Over())
                return
            except ClientError as error:
                if not self._closed.is_set():
                    self._put(Lost(str(error)))
                    self._closed.wait(_PAUSE_SECONDS)
            except ValueError:
                if not self._closed.is_set():
                    raise
                return  # grpc, on a closing connection

    def _put(self, news: News) -> None:
        self._news.put(news)
        self._wake()
