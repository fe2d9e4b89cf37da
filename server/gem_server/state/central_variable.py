"""The central variable: the run's parameters, and the version they have.

Knows arrays and versions. Refuses to know sessions, queues, files and the wire. Not thread-safe: the one applying task
writes it (from the event loop, or from the kernel's thread while the event loop leaves it alone).
"""

import secrets
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gem_core import Layout, Statistics, UpdateRule, WorkerState


class Version(NamedTuple):
    """(incarnation, clock): clocks of different incarnations cannot be compared. Clock 0: no parameters yet."""

    incarnation: int
    clock: int


@dataclass(frozen=True, slots=True)
class Handle:
    """A payload in shared memory, as server and worker name it; see `SharedMemoryHandle`."""

    region: int
    offset: int
    byte_count: int


class Published(Protocol):
    """Memory in which a worker itself reads the snapshot that lies there."""

    @property
    def parameters(self) -> NDArray[np.float32]:
        """The place for them, float32[parameter_count]."""

    @property
    def handle(self) -> Handle:
        """Where the whole payload is."""

    def will_change(self) -> None:
        """What lies there is of no version from now on."""

    def publish(self, version: Version, buffers: bytes) -> None:
        """It is of this version, with these BUFFERs."""


@dataclass(slots=True, eq=False)
class Snapshot:
    """Parameters that are known to be of one version, in full precision.

    `parameters` are float32[parameter_count], written in place, one array for as long as the snapshot lives (or until
    it moves to memory that the worker reads, too: `published`); `buffers` are the bytes of all BUFFERs, in layout order
    (an immutable object that is shared, never written).
    """

    parameters: NDArray[np.float32]
    version: Version
    buffers: bytes
    published: Published | None = None

    def will_change(self) -> None:
        """The parameters are about to be written."""
        if self.published is not None:
            self.published.will_change()

    def becomes(self, version: Version, buffers: bytes) -> None:
        """The parameters were written: they are those of `version`."""
        self.version = version
        self.buffers = buffers
        if self.published is not None:
            self.published.publish(version, buffers)


class CentralVariable:
    """theta, float32[parameter_count], with the BUFFERs and CONSTANTs beside it as bytes in layout order."""

    def __init__(self) -> None:
        # Random, so that a directory restored from a backup cannot repeat one; 63 bits, so that it fits every
        # language's signed integer; never 0, which means "unset" on the wire.
        self.incarnation = secrets.randbits(62) + 1
        self.clock = 0
        self.layout: Layout | None = None
        self.parameters: NDArray[np.float32] = np.empty(0, np.float32)
        self.buffers = b""
        self.constants = b""

    @property
    def version(self) -> Version:
        """The version of `parameters`."""
        return Version(self.incarnation, self.clock)

    def bind(
        self, layout: Layout, parameters: NDArray[np.float32], buffers: bytes, constants: bytes, clock: int = 1
    ) -> None:
        """Take the first parameters (the arrays are kept, not copied), or recovered ones at their clock."""
        if self.layout is not None:
            raise RuntimeError("the central variable is bound already")
        self.layout = layout
        self.parameters = parameters
        self.buffers = buffers
        self.constants = constants
        self.clock = clock

    def apply(self, rule: UpdateRule, state: WorkerState, delta: NDArray[np.float32], staleness: int) -> Statistics:
        """Run the rule; the clock is not touched (see `advance`). May run outside the event loop's thread."""
        return rule.commit(self.parameters, state, delta, staleness)

    def advance(self, buffers: bytes) -> Version:
        """Make the next version, with the newest commit's BUFFERs."""
        self.buffers = buffers
        self.clock += 1
        return self.version
