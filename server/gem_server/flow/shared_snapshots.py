"""Snapshots for readers without a session."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gem_server.errors import Reason, RefusedError
from gem_server.flow.calls import Call
from gem_server.flow.reader import Reader
from gem_server.state.buffers import Buffers
from gem_server.state.central_variable import CentralVariable
from gem_server.state.memory import SHARED_SNAPSHOTS
from gem_server.version import Version

RETRY_SECONDS = 1.0


class _Shared:
    __slots__ = ("buffers", "parameters", "readers", "version")

    def __init__(self, version: Version, parameters: NDArray[np.float32], buffers: Buffers) -> None:
        self.version = version
        self.parameters = parameters
        self.buffers = buffers
        self.readers: set[Reader] = set()


class SharedSnapshots:
    """At most two copies of theta, kept while read. `stall_timeout` in seconds."""

    def __init__(self, central: CentralVariable, clock: Callable[[], float], stall_timeout: float) -> None:
        self._central = central
        self._clock = clock
        self._stall_timeout = stall_timeout
        self._snapshots: list[_Shared] = []

    @property
    def readers(self) -> int:
        """Number of readers."""
        return sum(len(shared.readers) for shared in self._snapshots)

    def open(self, call: Call | None, version: Version) -> Reader | None:
        """A reader if there is a copy."""
        for shared in self._snapshots:
            if shared.version == version:
                return self._read(shared, call)
        return None

    def make_room(self) -> None:
        """Raise TOO_MANY if active readers use all copies."""
        if len(self._snapshots) >= SHARED_SNAPSHOTS:
            self.end_stalled()
        if len(self._snapshots) >= SHARED_SNAPSHOTS:
            raise RefusedError(
                Reason.TOO_MANY,
                f"{SHARED_SNAPSHOTS} older versions are being read by callers without a session: pull again later",
                retry_after=RETRY_SECONDS,
            )

    def end_stalled(self) -> None:
        """End readers without progress for `stall_timeout`."""
        limit = self._clock() - self._stall_timeout
        for reader in [one for shared in self._snapshots for one in shared.readers if one.progressed_at <= limit]:
            reader.end(
                RefusedError(
                    Reason.STALLED,
                    f"nothing was read for {self._stall_timeout:g} s while others waited: pull again",
                    retry_after=RETRY_SECONDS,
                )
            )

    def add(self, call: Call | None, parameters: NDArray[np.float32]) -> Reader:
        """Share `parameters`, a copy of the current version."""
        shared = _Shared(self._central.version, parameters, self._central.buffers)
        self._snapshots.append(shared)
        return self._read(shared, call)

    def _read(self, shared: _Shared, call: Call | None) -> Reader:
        def close(reader: Reader) -> None:
            shared.readers.remove(reader)
            if not shared.readers:
                self._snapshots.remove(shared)

        reader = Reader(call, shared.version, shared.parameters, shared.buffers, self._clock)
        reader.on_close.append(close)
        shared.readers.add(reader)
        return reader
