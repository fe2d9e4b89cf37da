"""`Courier`: a thread that makes a client's commits, so that the thread that trains can compute meanwhile.

One commit is under way at a time. Between `hand` and the end of `collect`, `give_up` or `close` the client is the
courier's; at other times it is the caller's, as if there were no courier.

What may be interrupted (Ctrl-C raises in the caller's thread, between any two instructions) loses nothing: what came of
a commit is kept until `collect` has returned it.
"""

import atexit
import os
import threading
import time
from functools import partial
from queue import Empty, SimpleQueue

from gem_worker.client.client import Client
from gem_worker.client.errors import MisuseError
from gem_worker.client.interrupts import interrupts_wait
from gem_worker.client.messages import CommitOutcome, Version

# A wait is made of so many seconds each: on Windows Ctrl-C is noticed between two of them.
_SLICE = 0.5
# How often a call that is to end is told so: it may not have begun.
_REMINDER = 0.1


class _Errand:
    """One commit; `outcome` is written by the courier's thread, last."""

    def __init__(self, commit: "partial[CommitOutcome]") -> None:
        self.commit = commit
        self.outcome: CommitOutcome | BaseException | None = None


class Courier:
    """See the module. For one thread; the client must have joined, and pulled."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._pid = os.getpid()
        self._errand: _Errand | None = None
        # SimpleQueue, because its methods may be interrupted by a signal's handler that raises.
        self._errands: SimpleQueue[_Errand | None] = SimpleQueue()
        self._back: SimpleQueue[None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="gemps-commits", daemon=True)
        with interrupts_wait():
            self._thread.start()
            # Before the client's own end: registered later, run earlier.
            atexit.register(self.close)

    @property
    def is_under_way(self) -> bool:
        """A commit was handed over, and not collected."""
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
    ) -> None:
        """Begin a commit; both buffers are its own until it is collected. Raises MisuseError while one is under way.

        What the last one left in place (see Client.commit) must have been read by now.
        """
        if self._errand is not None:
            raise MisuseError("collect() the commit that is under way first")
        commit = partial(self._client.commit, delta, into, loss=loss, samples=samples, base=base, in_place=in_place)
        errand = _Errand(commit)
        with interrupts_wait():
            self._errand = errand
            self._errands.put(errand)

    def collect(self, timeout: float | None = None) -> CommitOutcome | None:
        """What came of the commit; waits for it. None: not within `timeout` seconds.

        Raises what Client.commit raises, and MisuseError when none is under way.
        """
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
        """End the commit that is under way, and with it this client's commits for good; it may yet leave the run.

        A commit that had reached the server whole is applied all the same.
        """
        errand = self._errand
        while errand is not None and not self._wait(errand, _REMINDER):
            self._client.give_up()
        self._errand = None

    def close(self, patience: float = 0.0) -> None:
        """End the thread; a commit that is under way is waited for, so many seconds, then given up.

        Harmless a second time, and in a forked child, which has no such thread.
        """
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
        """Whether it is back, after at most so many seconds."""
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
