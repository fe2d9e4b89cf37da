"""One daemon thread a client: it ends calls that make no progress, and sends heartbeats while there is no call.

A call is in one of two stages. While bytes are under way, a pause of `progress_timeout` ends the call. While the server
has the next word (a staging buffer, the verdict, a turn in round-robin order) a pause may be legitimate for as long as
other workers take, so after `heartbeat_interval`, or `progress_timeout` if that is shorter, the server is asked by a
heartbeat: only one that does not answer, or no longer knows the session, is treated as dead. A server that says it has
applied the commit, and still sends no verdict by the next examination, has lost the stream.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gem_worker.client.settings import ClientSettings

# Seconds that a probe may take: as long as a keepalive ping may (channel.py).
PROBE_TIMEOUT = 20.0
# How often the thread looks, at most: a pause is noticed within this many seconds of its limit.
_LARGEST_TICK = 1.0


class Watched:
    """One call to be watched, which `cancel` ends.

    Written by the thread that makes the call and by gRPC's sender; read by the watchdog.

    Attributes:
        waiting: the server has the next word (True), or bytes are under way (False).
        sequence: the commit that awaits its verdict; 0: none does.
        progressed_at: when a message moved last, in seconds of time.monotonic.
        said_applied: the watchdog's: the last heartbeat said that `sequence` is applied.
        ended_because: the watchdog's: why it cancelled the call.
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
        """A message moved."""
        self.progressed_at = time.monotonic()


class Watchdog:
    """See the module. `watch` is for one thread at a time; `start` and `stop` as well.

    Args:
        probe: asks the server; returns the last applied sequence, or why the server cannot be counted on.
        beat: keeps the session alive, if there is one and no open stream does it already.
        settings: progress_timeout and heartbeat_interval.
        look: has a look at what is open, at every tick without a call under watch.

    The functions are called in the watchdog's thread.

    Attributes:
        watched: the call that is under way, if there is one: `watch` sets it, or whoever makes the call.
        called_at: when a call was last known to be under way: the next heartbeat is due an interval later. Likewise.
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
        """Start the thread, unless it runs."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gemps-watchdog", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for it; at most as long as one heartbeat takes."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    @contextmanager
    def watch(self, cancel: Callable[[], object]) -> Iterator[Watched]:
        """Watch a call, which `cancel` ends, for the duration of the block."""
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
        """Seconds for which a server that has the next word is not asked whether it is there."""
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
        # It may have moved, or ended, during the heartbeat. (If it ends just now, the next commit on the same stream
        # finds it cancelled, and is repeated: nothing is lost.)
        if self.watched is watched and watched.progressed_at == seen:
            watched.ended_because = pause
            watched.cancel()
