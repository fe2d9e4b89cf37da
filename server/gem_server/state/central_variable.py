"""The run's parameters (theta) and version.

Only the applying task writes them, from the event loop or the kernel thread; recovery binds them before.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gem_core import Layout, RuleState, Statistics, UpdateRule
from gem_server.state.buffers import NO_BUFFERS, Buffers
from gem_server.version import Handle, Version


class Published(Protocol):
    """Shared memory with a snapshot that a worker reads."""

    @property
    def parameters(self) -> NDArray[np.float32]:
        """Float32[parameter_count]."""

    @property
    def handle(self) -> Handle:
        """Location of the payload."""

    def will_change(self) -> None:
        """Invalidate the contents."""

    def publish(self, version: Version, pieces: Sequence[bytes]) -> None:
        """Set the contents' version, and each BUFFER's bytes."""


@dataclass(slots=True, eq=False)
class Snapshot:
    """Parameters of one version.

    `parameters`: written in place, replaced only on a move to shared memory.
    """

    parameters: NDArray[np.float32]
    version: Version
    buffers: Buffers
    published: Published | None = None

    def will_change(self) -> None:
        """Announce a write of the parameters."""
        if self.published is not None:
            self.published.will_change()

    def becomes(self, version: Version, buffers: Buffers) -> None:
        """Set the version that was written."""
        self.version = version
        self.buffers = buffers
        if self.published is not None:
            self.published.publish(version, buffers.pieces)


class CentralVariable:
    """Theta, float32[parameter_count], with BUFFERs; `adapter`: parameters.proto."""

    def __init__(self) -> None:
        # Random: a restored backup must not repeat it. Fits int64; 0 means unset on the wire.
        self.incarnation = secrets.randbits(62) + 1
        self.clock = 0
        self.layout: Layout | None = None
        self.parameters: NDArray[np.float32] = np.empty(0, np.float32)
        self.buffers = NO_BUFFERS
        self.adapter = b""

    @property
    def version(self) -> Version:
        """The version of `parameters`."""
        return Version(self.incarnation, self.clock)

    def bind(
        self, layout: Layout, parameters: NDArray[np.float32], buffers: bytes, clock: int = 1, *, adapter: bytes = b""
    ) -> None:
        """Set first or recovered parameters, without a copy; `buffers`: the bytes of all BUFFERs, in layout order."""
        if self.layout is not None:
            raise RuntimeError("the central variable is bound already")
        self.layout = layout
        self.parameters = parameters
        self.buffers = Buffers.split(layout, buffers, clock)
        self.adapter = adapter
        self.clock = clock

    def apply(
        self,
        rule: UpdateRule,
        state: RuleState,
        delta: NDArray[np.float32],
        staleness: int,
        eta: float,
        decays: Sequence[float],
    ) -> Statistics:
        """Run the rule, without `advance`. May run on any thread."""
        return rule.commit(self.parameters, state, delta, staleness, eta, decays)

    def advance(self, buffers: Buffers) -> Version:
        """Advance the clock; set BUFFERs."""
        self.buffers = buffers
        self.clock += 1
        return self.version
