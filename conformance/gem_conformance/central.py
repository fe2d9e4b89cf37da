"""What the kit's server knows: the central variable (theta <- theta + delta), one session, and what that was given."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
from gemps.v1 import commit_pb2, run_pb2, transfer_pb2
from numpy.typing import NDArray

from gem_conformance.task import Task, buffer_bytes
from gem_core.chunking import Splitter
from gem_core.payload import PayloadFormat
from gem_core.wire_types import WireType, decode, encode

__all__ = ["Attempt", "Central", "Clock", "Content", "Session", "Snapshot"]


@dataclass(frozen=True, slots=True)
class Clock:
    """A version: (incarnation, clock)."""

    incarnation: int
    clock: int

    def __str__(self) -> str:
        return f"(incarnation {self.incarnation}, clock {self.clock})"

    def to_wire(self) -> transfer_pb2.Version:
        """As a message."""
        return transfer_pb2.Version(incarnation=self.incarnation, clock=self.clock)

    @staticmethod
    def of(message: transfer_pb2.Version) -> Clock:
        """Of a message."""
        return Clock(message.incarnation, message.clock)


@dataclass(slots=True, eq=False)
class Snapshot:
    """Parameters that a session was given, or is being given.

    Attributes:
        version: theirs.
        theta: float32, unrounded.
        buffers: bytes of the BUFFERs.
        is_delivered: all of it was sent, footer included, on a call that was not broken.
        lacks: what is wrong with it as long as it is not.
    """

    version: Clock
    theta: NDArray[np.float32]
    buffers: bytes
    is_delivered: bool = False
    lacks: str = "its parameters were not sent yet"

    def was_sent(self, *, whole: bool, damaged: bool) -> None:
        """It was sent: all of it or not, with a footer that matches or not."""
        self.is_delivered = whole and not damaged
        self.lacks = "the footer of its parameters did not match" if whole else "its parameters broke off in the midst"

    def seen(self, wire_type: WireType) -> NDArray[np.float32]:
        """Theta as a worker has it that got it in `wire_type`."""
        out = np.empty_like(self.theta)
        if out.size:
            decode(wire_type, memoryview(bytes(encode(wire_type, self.theta))), out)
        return out

    def split(self, payload: PayloadFormat, constants: bytes, chunk_bytes: int, start: int) -> Splitter:
        """The chunks of it."""
        rest = self.buffers + constants if payload.with_constants else self.buffers
        return Splitter(payload, self.theta, rest, chunk_bytes, start)


@dataclass(frozen=True, slots=True)
class Content:
    """What makes a repeat the same commit."""

    wire_type: int
    byte_count: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """A commit that the candidate has to send again, or does not know the outcome of.

    `payload`: its bytes, as far as they came; `is_unknown`: all of them came, footer included.
    """

    sequence: int
    base: Clock
    payload: bytes
    is_unknown: bool


@dataclass(slots=True)
class Session:
    """The candidate's session.

    Attributes:
        is_known: the server knows it now; False after a restart or expiry, until the next Join.
        last_applied, stored, content: of its newest applied commit.
        snapshot: what it was given last; None: nothing yet, or lost.
        before: what it had before, to recognise a delta of it.
        has_constants: it pulled them, or uploaded its own.
        open: an attempt that the candidate has to repeat, or does not know the outcome of; a completed pull ends that.
        told_eta, eta_before: the learning rate that it was told last, and the one before.
    """

    session_id: bytes
    delta_wire_type: WireType = WireType.FLOAT32
    parameter_wire_type: WireType = WireType.FLOAT32
    is_known: bool = True
    last_applied: int = 0
    stored: commit_pb2.Verdict | None = None
    content: Content | None = None
    snapshot: Snapshot | None = None
    before: Snapshot | None = None
    has_constants: bool = False
    open: Attempt | None = None
    told_eta: float = 0.0
    eta_before: float = 0.0

    def hold(self, snapshot: Snapshot) -> None:
        """It is being given this."""
        if self.snapshot is not None and self.snapshot.is_delivered:
            self.before = self.snapshot
        self.snapshot = snapshot

    def lose_snapshot(self) -> None:
        """It has to pull before it can commit again."""
        self.before = self.snapshot or self.before
        self.snapshot = None
        self.open = None

    def tell_eta(self, eta: float) -> None:
        """It is being told the learning rate for its next commit."""
        if eta != self.told_eta:
            self.eta_before, self.told_eta = self.told_eta, eta


@dataclass(slots=True)
class Central:
    """The central variable, and the run.

    Attributes:
        theta: None: there are no parameters yet.
        eta, run_state, local_steps, normalise_local_steps: what Join, Heartbeat and verdicts tell.
        generation: of the made-up BUFFERs.
    """

    task: Task
    theta: NDArray[np.float32] | None = None
    buffers: bytes = b""
    constants: bytes = b""
    clock: int = 0
    incarnation: int = field(default_factory=lambda: random.randrange(1, 1 << 63))  # noqa: S311 - no secret
    eta: float = 0.05
    run_state: run_pb2.RunState = run_pb2.RUN_STATE_TRAINING
    local_steps: int = 1
    normalise_local_steps: bool = False
    generation: int = 1

    @property
    def version(self) -> Clock:
        """The current one."""
        return Clock(self.incarnation, self.clock)

    def begin(self, theta: NDArray[np.float32]) -> None:
        """Let another worker have initialised it, and have trained for a while."""
        self.theta = theta.copy()
        self.buffers = buffer_bytes(self.task.layout.buffers, self.generation)
        self.constants = buffer_bytes(self.task.layout.constants, 3)
        self.clock = 41

    def initialise(self, theta: NDArray[np.float32], rest: bytes) -> None:
        """Take the candidate's own; `rest`: the bytes of BUFFERs and CONSTANTs."""
        size = self.task.layout.buffer_bytes
        self.theta, self.buffers, self.constants, self.clock = theta, rest[:size], rest[size:], 1

    def others_commit(self) -> int:
        """Let other workers commit, so that a candidate that goes on from its own parameters shows; how often they did.

        The factor keeps values exact in narrow types: with eta = 0.5 the candidate's own commit then makes it -2.
        """
        if self.theta is None:
            raise AssertionError("there are no parameters")
        self.theta *= np.float32(-1.5)
        self.generation += 1
        self.buffers = buffer_bytes(self.task.layout.buffers, self.generation)
        self.clock += 2
        return 2

    def apply(self, delta: NDArray[np.float32], buffers: bytes) -> None:
        """Theta <- theta + delta."""
        if self.theta is None:
            raise AssertionError("there are no parameters")
        self.theta += delta
        self.buffers = buffers
        self.clock += 1

    def snapshot(self) -> Snapshot:
        """What there is now."""
        if self.theta is None:
            raise AssertionError("there are no parameters")
        return Snapshot(self.version, self.theta.copy(), self.buffers)
