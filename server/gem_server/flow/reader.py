"""Streaming from a snapshot without a copy or a lock.

A reader touches the arrays only between two awaits, so `end` takes effect at once. Whoever writes to an array ends its
readers first.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gem_server.errors import Reason, RefusedError
from gem_server.flow.calls import Call
from gem_server.state.buffers import Buffers
from gem_server.state.sessions import Session
from gem_server.version import Handle, Version


class Reader:
    """May read `parameters` (float32[parameter_count]) and `buffers` of one version.

    `call` is None until the reader has a call. `handle` says where the parameters lie in shared memory. `progressed_at`
    is the time of the last progress.
    """

    def __init__(
        self,
        call: Call | None,
        version: Version,
        parameters: NDArray[np.float32],
        buffers: Buffers,
        clock: Callable[[], float],
        handle: Handle | None = None,
    ) -> None:
        self.call = call
        if call is not None:
            call.streaming += 1
        self.version = version
        self.parameters = parameters
        self.buffers = buffers
        self.handle = handle
        self.on_close: list[Callable[[Reader], None]] = []
        self._clock = clock
        self.progressed_at = clock()
        self._refusal: RefusedError | None = None
        self._closed = False

    def check_alive(self) -> None:
        """Raise the refusal if the reader was revoked. Call this after every await, before touching the arrays."""
        if self._refusal is not None:
            raise self._refusal.again()
        self.progressed_at = self._clock()

    def end(self, refusal: RefusedError) -> None:
        """Revoke the permission to read, and end the call."""
        if not self._closed:
            self._refusal = refusal
            self.close()
            if self.call is not None:
                self.call.end(refusal)

    def close(self) -> None:
        """Release the reader. Idempotent."""
        if not self._closed:
            self._closed = True
            if self.call is not None:
                self.call.streaming -= 1
            for close in self.on_close:
                close(self)


def end_open_commit(session: Session) -> None:
    """End the session's open Commit, if any, for a newer Join or Pull.

    An incomplete commit is discarded, because of the ended call only the clean-up still runs. A complete commit is in
    the queue, and is applied.
    """
    if session.commit_call is not None:
        session.commit_call.end(superseded_by_newer_call())


def superseded_by_newer_call() -> RefusedError:
    """Return the error with which a session's older call ends."""
    return RefusedError(Reason.NEWER_CALL, "a newer call of this session took over: use that one, or open a new one")
