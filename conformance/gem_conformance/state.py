"""What the kit's server holds: the central variable, the candidate's session, and the parameters that it was sent.

The rule is theta <- theta + delta. Before each of the candidate's commits others "commit": theta times -1.5, which
keeps values exact in narrow types, and shows whether a candidate goes on with parameters of its own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
from gemps.v1 import commit_pb2, run_pb2
from gemps.v1.transfer_pb2 import Version
from numpy.typing import NDArray

from gem_conformance.task import Task, buffer_bytes
from gem_conformance.wire import Call
from gem_core.wire_types import WireType, decode, encode

__all__ = ["Attempt", "Central", "LeftOut", "Session", "Snapshot", "decoded", "text_of"]

Floats = NDArray[np.float32]


@dataclass(slots=True, eq=False)
class Snapshot:
    """Parameters that the candidate was sent, or is being sent.

    Attributes:
        version: their version.
        theta: float32, one-dimensional, as the server holds it.
        buffers: the bytes of all BUFFERs.
        is_delivered: whether all of it was sent, undamaged, with its footer.
        lacks: why it is not.
        of_difference: the PARAMETERs that the candidate has after a reply which was a difference.
    """

    version: Version
    theta: Floats
    buffers: bytes
    is_delivered: bool = False
    lacks: str = "its parameters were not sent yet"
    of_difference: Floats | None = None

    def was_sent(self, *, whole: bool, damaged: bool) -> None:
        """Record how a transfer of it ended."""
        self.is_delivered = whole and not damaged
        self.lacks = "the footer of its parameters did not match" if whole else "its parameters were incomplete"

    def seen(self, wire_type: WireType) -> Floats:
        """Return the PARAMETERs as the candidate decodes them from its wire type."""
        if self.of_difference is not None:
            return self.of_difference.copy()
        whole = wire_type.of_whole
        return decoded(whole, bytes(encode(whole, self.theta)), self.theta.size)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A commit whose stream has ended before the candidate had its verdict.

    `payload`: the bytes that came; `is_whole`: whether those are all, so that only a repeat tells the outcome.
    """

    sequence: int
    base: Version
    payload: bytes
    is_whole: bool


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What lossy deltas left out.

    `due`: what the delta at `base` should be. `before`, `after`: what was left out before it, and with it.
    `before_that`: what was left out before the delta before it.
    """

    base: Version
    before_that: Floats
    before: Floats
    due: Floats
    after: Floats


@dataclass(slots=True)
class Session:
    """The candidate's session.

    Attributes:
        is_known: False from a restart or expiry until Join.
        stored, crc32c, base: verdict, checksum and base version of the newest applied commit.
        snapshot, before: the parameters sent last (None: none, or lost), and those before them.
        open: the commit whose outcome the candidate does not know.
        refused: the payload that was refused for its values.
        early: the stream and sequence that have a proceed already.
        told_eta, eta_before: the learning rate that the candidate was told last, and before that.
        left_out: of the newest delta, if deltas are lossy.
    """

    session_id: bytes
    features: frozenset[str] = frozenset()
    delta_wire_type: WireType = WireType.FLOAT32
    parameter_wire_type: WireType = WireType.FLOAT32
    is_known: bool = True
    last_applied: int = 0
    stored: commit_pb2.Verdict | None = None
    crc32c: int = 0
    base: Version | None = None
    snapshot: Snapshot | None = None
    before: Snapshot | None = None
    open: Attempt | None = None
    refused: bytes | None = None
    early: tuple[Call, int] | None = None
    told_eta: float = 0.0
    eta_before: float = 0.0
    left_out: LeftOut | None = None

    def hold(self, snapshot: Snapshot) -> None:
        """Record the parameters that are being sent."""
        if self.snapshot is not None and self.snapshot.is_delivered:
            self.before = self.snapshot
        self.snapshot = snapshot

    def lose_snapshot(self) -> None:
        """Require a Pull before the next commit."""
        self.before = self.snapshot or self.before
        self.snapshot = self.open = None

    def tell_eta(self, eta: float) -> None:
        """Record the learning rate that is being sent."""
        if eta != self.told_eta:
            self.eta_before, self.told_eta = self.told_eta, eta


@dataclass(slots=True)
class Central:
    """The central variable; `theta` is None before there are parameters. `settings`: of the run, in Join's answer."""

    task: Task
    theta: Floats | None = None
    buffers: bytes = b""
    clock: int = 0
    incarnation: int = field(default_factory=lambda: random.randrange(1, 1 << 63))  # noqa: S311 - no secret
    eta: float = 0.05
    run_state: run_pb2.RunState = run_pb2.RUN_STATE_TRAINING
    settings: run_pb2.RunSettings = field(
        default_factory=lambda: run_pb2.RunSettings(
            rule="downpour",
            eta=0.15,  # the schedule has lowered it since
            eta_schedule=run_pb2.ETA_SCHEDULE_COSINE,
            order=run_pb2.SERVING_ORDER_FIFO,
            min_workers=1,
            seed=1,
        )
    )
    generation: int = 1

    @property
    def newest_version(self) -> Version:
        """The current version."""
        return Version(incarnation=self.incarnation, clock=self.clock)

    @property
    def is_finished(self) -> bool:
        """Whether the run has finished."""
        return self.run_state == run_pb2.RUN_STATE_FINISHED

    def become_trained(self, theta: Floats) -> None:
        """Hold parameters that others have trained."""
        self.theta, self.clock = theta.copy(), 41
        self.buffers = buffer_bytes(self.task.layout.buffers, self.generation)

    def initialise(self, theta: Floats, buffers: bytes) -> None:
        """Hold the first parameters."""
        self.theta, self.buffers, self.clock = theta, buffers, 1

    def others_commit(self) -> int:
        """Let others commit; return how often they did."""
        self.theta = self._theta * np.float32(-1.5)
        self.generation += 1
        self.buffers = buffer_bytes(self.task.layout.buffers, self.generation)
        self.clock += 2
        return 2

    def apply(self, delta: Floats, buffers: bytes) -> None:
        """Apply theta <- theta + delta, and replace the BUFFERs."""
        self.theta, self.buffers = self._theta + delta, buffers
        self.clock += 1

    def snapshot(self) -> Snapshot:
        """Return the current state."""
        return Snapshot(self.newest_version, self._theta, self.buffers)

    @property
    def _theta(self) -> Floats:
        if self.theta is None:
            raise AssertionError("there are no parameters")
        return self.theta


def decoded(wire_type: WireType, data: bytes, count: int) -> Floats:
    """Return the `count` float32 values that these bytes are in a wire type."""
    out = np.empty(count, np.float32)
    decode(wire_type, memoryview(data), out)
    return out


def text_of(version: Version) -> str:
    """Return a version as messages have it."""
    return f"(incarnation {version.incarnation}, clock {version.clock})"
