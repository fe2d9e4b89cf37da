"""Commits in a thread while the training thread computes. KeyboardInterrupt loses no outcome."""

import atexit
import os
import threading
import time
from functools import partial
from queue import Empty, SimpleQueue

from gem_core.selection import Selection
from gem_worker.client.client import Client
from gem_worker.client.errors import MisuseError
from gem_worker.client.interrupts import interrupts_wait
from gem_worker.client.messages import CommitOutcome, Version

# On Windows, Ctrl-C is handled only between slices.
_SLICE = 0.5
# Seconds between cancellations: a starting call may miss one.
_REMINDER = 0.1


class _Errand:
    """The courier's thread sets `outcome` last."""

    def __init__(self, commit: "partial[CommitOutcome]") -> None:
        self.commit = commit
        self.outcome: CommitOutcome | BaseException | None = None


class Courier:
    """Use after join() and pull(). Not thread-safe."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._pid = os.getpid()
        self._errand: _Errand | None = None
        # Tolerates signal handlers that raise.
        self._errands: SimpleQueue[_Errand | None] = SimpleQueue()
        self._back: SimpleQueue[None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="gemps-commits", daemon=True)
        with interrupts_wait():
            self._thread.start()
            # Runs before the client's handler.
            atexit.register(self.close)

    @property
    def is_under_way(self) -> bool:
        """Whether a commit is uncollected."""
        return self._errand is not None

    def hand(
        self,
        delta: memoryview,
        into: memoryview,
        base: Version,
        loss: float | None,
        samples: int,
        *,
        in_place: bool = False,
        buffers: Selection | None = None,
    ) -> None:
        """Start a commit, which owns both buffers.

        Overwrites parameters left in place (Client.commit). Raises MisuseError if one is in flight.
        """
        if self._errand is not None:
            raise MisuseError("collect() the commit that is under way first")
        commit = partial(self._client.commit, delta, into, loss=loss, samples=samples, base=base, in_place=in_place)
        if buffers is not None:
            commit = partial(commit, buffers=buffers)
        errand = _Errand(commit)
        with interrupts_wait():
            self._errand = errand
            self._errands.put(errand)

    def collect(self, timeout: float | None = None) -> CommitOutcome | None:
        """Wait for the outcome; None after `timeout` seconds. Raises as Client.commit, or MisuseError."""
        errand = self._errand
        if errand is None:
            raise MisuseError("no commit is under way")
        if not self._wait(errand, timeout):
            return None
        outcome = errand.outcome
        self._errand = None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def give_up(self) -> None:
        """Cancel the commit in flight; the client can then only leave. The server may still apply it."""
        errand = self._errand
        while errand is not None and not self._wait(errand, _REMINDER):
            self._client.give_up()
        self._errand = None

    def close(self, patience: float = 0.0) -> None:
        """Stop the thread, cancelling a commit after `patience` seconds. Idempotent and fork-safe."""
        if os.getpid() != self._pid:
            return
        atexit.unregister(self.close)
        if self._errand is not None:
            self._wait(self._errand, patience)
            self.give_up()
        self._errands.put(None)
        with interrupts_wait():
            self._thread.join()

    def _wait(self, errand: _Errand, timeout: float | None) -> bool:
        until = time.monotonic() + timeout if timeout is not None else None
        while errand.outcome is None:
            left = until - time.monotonic() if until is not None else _SLICE
            if left <= 0:
                return False
            try:
                self._back.get(timeout=min(left, _SLICE))
            except Empty:
                continue
        return True

    def _run(self) -> None:
        while (errand := self._errands.get()) is not None:
            try:
                errand.outcome = errand.commit()
            except BaseException as error:
                errand.outcome = error
            self._back.put(None)
