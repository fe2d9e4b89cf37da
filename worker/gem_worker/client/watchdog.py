"""Cancels stalled calls and sends heartbeats.

A call also ends if a commit reported as applied has no verdict by the next probe.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gem_worker.client.settings import ClientSettings

# Seconds, as for keepalive pings.
PROBE_TIMEOUT = 20.0
# Seconds.
_LARGEST_TICK = 1.0


class Watched:
    """A call; the calling and sending threads write it.

    Attributes:
        waiting: the server must act next; False: bytes are in flight.
        sequence: commit that awaits its verdict; 0: none.
        progressed_at: time.monotonic() of the last message.
        said_applied: the last probe reported `sequence` as applied.
        ended_because: why the watchdog cancelled it.
    """

    __slots__ = ("cancel", "ended_because", "progressed_at", "said_applied", "sequence", "waiting")

    def __init__(self, cancel: Callable[[], object]) -> None:
        self.cancel = cancel
        self.waiting = True
        self.sequence = 0
        self.progressed_at = time.monotonic()
        self.said_applied = False
        self.ended_because: str | None = None

    def progress(self) -> None:
        """Record progress."""
        self.progressed_at = time.monotonic()


class Watchdog:
    """Watches one call at a time; callbacks run in its thread.

    Args:
        probe: returns the last applied sequence, or why the server is unusable.
        beat: keeps the session alive.
        look: called at each tick between calls.

    Attributes:
        watched: the call in flight, if any.
        called_at: when one was last in flight.
    """

    def __init__(
        self,
        probe: Callable[[], int | str],
        beat: Callable[[], None],
        settings: ClientSettings,
        look: Callable[[], object] = bool,
    ) -> None:
        self._probe = probe
        self._beat = beat
        self._settings = settings
        self._look = look
        self.watched: Watched | None = None
        self.called_at = time.monotonic()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread. Idempotent."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gemps-watchdog", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stopped.set()
        if self._thread is not None and self._thread.is_alive():  # started
            self._thread.join()

    @contextmanager
    def watch(self, cancel: Callable[[], object]) -> Iterator[Watched]:
        """Watch a call during the block."""
        watched = Watched(cancel)
        try:
            self.watched = watched
            yield watched
        finally:
            self.watched = None
            self.called_at = watched.progressed_at

    def _run(self) -> None:
        tick = min(_LARGEST_TICK, self._patience_with_silence / 4)
        while not self._stopped.wait(tick):
            now = time.monotonic()
            watched = self.watched
            if watched is not None:
                limit = self._patience_with_silence if watched.waiting else self._settings.progress_timeout
                if now - watched.progressed_at >= limit:
                    self._examine(watched, limit)
                continue
            if now - self.called_at >= self._settings.heartbeat_interval:
                self.called_at = now
                self._beat()
            self._look()

    @property
    def _patience_with_silence(self) -> float:
        """Seconds of silence before a probe."""
        return min(self._settings.progress_timeout, self._settings.heartbeat_interval)

    def _examine(self, watched: Watched, limit: float) -> None:
        seen = watched.progressed_at
        pause = f"no progress for {limit:g} s"
        if watched.waiting:
            answer = self._probe()
            if isinstance(answer, str):
                pause = f"{pause}, and {answer}"
            elif watched.said_applied and answer == watched.sequence:
                pause = f"{pause}: the verdict was lost"
            else:
                watched.said_applied = watched.sequence != 0 and answer == watched.sequence
                if watched.progressed_at == seen:
                    watched.progress()
                return
        # If too late, the next commit is repeated.
        if self.watched is watched and watched.progressed_at == seen:
            watched.ended_because = pause
            watched.cancel()
