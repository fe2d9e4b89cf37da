"""Server state."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
from gemps.v1 import commit_pb2, run_pb2, transfer_pb2
from numpy.typing import NDArray

from gem_conformance.task import Task, buffer_bytes
from gem_core.chunking import DifferenceSplitter, Splitter
from gem_core.payload import PayloadFormat
from gem_core.wire_types import WireType, decode, encode

__all__ = ["Attempt", "Central", "Clock", "Content", "Session", "Snapshot"]


@dataclass(frozen=True, slots=True)
class Clock:
    """Version: (incarnation, clock)."""

    incarnation: int
    clock: int

    def __str__(self) -> str:
        return f"(incarnation {self.incarnation}, clock {self.clock})"

    def to_wire(self) -> transfer_pb2.Version:
        """Encode."""
        return transfer_pb2.Version(incarnation=self.incarnation, clock=self.clock)

    @staticmethod
    def from_wire(message: transfer_pb2.Version) -> Clock:
        """Decode."""
        return Clock(message.incarnation, message.clock)


@dataclass(slots=True, eq=False)
class Snapshot:
    """Parameters sent, or being sent.

    `theta`: float32, unrounded. `decoded`: of a difference. `lacks`: why it is not delivered.
    """

    version: Clock
    theta: NDArray[np.float32]
    buffers: bytes
    is_delivered: bool = False
    lacks: str = "its parameters were not sent yet"
    decoded: NDArray[np.float32] | None = None

    def was_sent(self, *, whole: bool, damaged: bool) -> None:
        """Record a transfer."""
        self.is_delivered = whole and not damaged
        self.lacks = "the footer of its parameters did not match" if whole else "its parameters were incomplete"

    def seen(self, wire_type: WireType) -> NDArray[np.float32]:
        """Theta as decoded from `wire_type`."""
        if self.decoded is not None:
            return self.decoded.copy()
        out, whole = np.empty_like(self.theta), wire_type.of_whole
        if out.size:
            decode(whole, memoryview(bytes(encode(whole, self.theta))), out)
        return out

    def split(self, payload: PayloadFormat, chunk_bytes: int, start: int, base: Snapshot | None) -> Splitter:
        """Split into chunks; with `base`, a difference."""
        if base is None:
            self.decoded = None
            return Splitter(payload, self.theta, self.buffers, chunk_bytes, start)
        self.decoded = base.seen(payload.wire_type)
        return DifferenceSplitter(payload, self.theta, self.buffers, chunk_bytes, copy=self.decoded)


@dataclass(frozen=True, slots=True)
class Content:
    """Recognises repeats of a payload."""

    wire_type: int
    byte_count: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """Commit to repeat; if `is_unknown`, all bytes arrived."""

    sequence: int
    base: Clock
    payload: bytes
    is_unknown: bool


@dataclass(slots=True)
class Session:
    """Candidate's session.

    Attributes:
        is_known: False from restart or expiry to Join.
        stored, content: of the newest applied commit.
        snapshot: last sent; None: none, or lost.
        before: the previous one.
        open: unresolved commit attempt.
        left_out: by deltas in blocks so far; `due`: with the delta judged last.
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
    open: Attempt | None = None
    told_eta: float = 0.0
    eta_before: float = 0.0
    left_out: NDArray[np.float32] = field(default_factory=lambda: np.zeros(1, np.float32))
    due: NDArray[np.float32] = field(default_factory=lambda: np.zeros(1, np.float32))

    def hold(self, snapshot: Snapshot) -> None:
        """Record the snapshot being sent."""
        if self.snapshot is not None and self.snapshot.is_delivered:
            self.before = self.snapshot
        self.snapshot = snapshot

    def lose_snapshot(self) -> None:
        """Require a pull before the next commit."""
        self.before = self.snapshot or self.before
        self.snapshot = None
        self.open = None

    def record_eta(self, eta: float) -> None:
        """Record the learning rate being sent."""
        if eta != self.told_eta:
            self.eta_before, self.told_eta = self.told_eta, eta


@dataclass(slots=True)
class Central:
    """Central variable, None before initialisation."""

    task: Task
    theta: NDArray[np.float32] | None = None
    buffers: bytes = b""
    clock: int = 0
    incarnation: int = field(default_factory=lambda: random.randrange(1, 1 << 63))  # noqa: S311 - no secret
    eta: float = 0.05
    run_state: run_pb2.RunState = run_pb2.RUN_STATE_TRAINING
    local_steps: int = 1
    normalise_local_steps: bool = False
    local_rate: float = 1.0
    scale_local_steps: bool = False
    generation: int = 1

    @property
    def newest_version(self) -> Clock:
        """Current version."""
        return Clock(self.incarnation, self.clock)

    def be_trained(self, theta: NDArray[np.float32]) -> None:
        """Train as another worker."""
        self.theta = theta.copy()
        self.buffers = buffer_bytes(self.task.layout.buffers, self.generation)
        self.clock = 41

    def initialise(self, theta: NDArray[np.float32], buffers: bytes) -> None:
        """Install the candidate's parameters."""
        self.theta, self.buffers, self.clock = theta, buffers, 1

    def others_commit(self) -> int:
        """Commit as other workers; return how often.

        -1.5 keeps values exact in narrow types.
        """
        if self.theta is None:
            raise AssertionError("there are no parameters")
        self.theta *= np.float32(-1.5)
        self.generation += 1
        self.buffers = buffer_bytes(self.task.layout.buffers, self.generation)
        self.clock += 2
        return 2

    def apply(self, delta: NDArray[np.float32], buffers: bytes) -> None:
        """Apply theta <- theta + delta."""
        if self.theta is None:
            raise AssertionError("there are no parameters")
        self.theta += delta
        self.buffers = buffers
        self.clock += 1

    def snapshot(self) -> Snapshot:
        """Copy the state."""
        if self.theta is None:
            raise AssertionError("there are no parameters")
        return Snapshot(self.newest_version, self.theta.copy(), self.buffers)
