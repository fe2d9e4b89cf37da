"""Streaming from a snapshot without a copy and without a lock.

A Reader is the right to read a snapshot until it is closed or taken away. Readers touch the arrays only between two
awaits of the event loop, so taking the right away (`end`) is immediate: whoever is about to write a snapshot does so
first. A slow reader thus holds its own call's memory, and nobody else.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gem_server.errors import Reason, Refusal
from gem_server.flow.calls import Call
from gem_server.state.central_variable import Handle, Version


class Reader:
    """The right to read `parameters` (float32[parameter_count]) and `buffers` of one version.

    `handle`: where the same lies in memory that the worker can read by itself. `progressed_at`: when the peer last took
    something, by `clock`.
    """

    def __init__(
        self,
        call: Call,
        version: Version,
        parameters: NDArray[np.float32],
        buffers: bytes,
        on_close: Callable[["Reader"], None],
        clock: Callable[[], float],
        handle: Handle | None = None,
    ) -> None:
        self.call = call
        call.streaming += 1
        self.version = version
        self.parameters = parameters
        self.buffers = buffers
        self.handle = handle
        self._on_close = on_close
        self._clock = clock
        self.progressed_at = clock()
        self._refusal: Refusal | None = None
        self._closed = False

    def check(self) -> None:
        """Raise when the right was taken away. Call it after every await, before touching the arrays."""
        if self._refusal is not None:
            raise self._refusal.again()
        self.progressed_at = self._clock()

    def end(self, refusal: Refusal) -> None:
        """Take the right away, and end the call that has it."""
        if not self._closed:
            self._refusal = refusal
            self.close()
            self.call.end(refusal)

    def close(self) -> None:
        """Give the right back; harmless when it was given back already."""
        if not self._closed:
            self._closed = True
            self.call.streaming -= 1
            self._on_close(self)


def superseded_by_newer_call() -> Refusal:
    """What an older call of a session is told when a newer one takes over."""
    return Refusal(Reason.SUPERSEDED, "a newer call of this session took over: use that one, or open a new one")
