"""What the kit's server holds: the central variable, the candidate's session, and the parameters that it was sent.

The update rule is theta <- theta + delta. Before it applies each of the candidate's commits, the kit pretends that
other workers have committed: it multiplies theta by -1.5. This keeps values exact in narrow types. It also makes the
candidate's next delta wrong if that is computed from the candidate's own parameters instead of those in the reply.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
from gemps.v1 import commit_pb2, run_pb2
from gemps.v1.transfer_pb2 import Version
from numpy.typing import NDArray

from gem_conformance.grpc_server import Call
from gem_conformance.task import Task, buffer_bytes
from gem_core.wire_types import WireType, decode, encode

__all__ = ["Attempt", "Central", "Residual", "Session", "Snapshot", "decoded", "describe"]

Floats = NDArray[np.float32]


@dataclass(slots=True, eq=False)
class Snapshot:
    """Parameters that the candidate was sent, or is being sent.

    Attributes:
        version: the version of the parameters.
        theta: all PARAMETERs as the server holds them (float32, one-dimensional).
        buffers: the bytes of all BUFFERs.
        is_delivered: whether all of it was sent, undamaged and with its footer.
        defect: why `is_delivered` is false, for messages.
        after_difference: the PARAMETERs that the candidate holds, if they came as a difference to its earlier ones.
            They are not exactly `theta`, because the encoding of the difference is lossy. None if they came whole.
    """

    version: Version
    theta: Floats
    buffers: bytes
    is_delivered: bool = False
    defect: str = "its parameters were not sent yet"
    after_difference: Floats | None = None

    def record_transfer(self, *, whole: bool, damaged: bool) -> None:
        """Record how its transfer ended: whether all of it was sent (`whole`), and whether the kit damaged it."""
        self.is_delivered = whole and not damaged
        self.defect = "the footer of its parameters did not match" if whole else "its parameters were incomplete"

    def as_decoded(self, wire_type: WireType) -> Floats:
        """Return the PARAMETERs as the candidate decodes them. `wire_type` is that of its session."""
        if self.after_difference is not None:
            return self.after_difference.copy()
        whole = wire_type.of_whole
        return decoded(whole, bytes(encode(whole, self.theta)), self.theta.size)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A commit whose stream ended before the candidate got its verdict, so that it does not know the outcome.

    Attributes:
        sequence, base: sequence and base version in its header.
        payload: the bytes that came before the stream ended.
        is_whole: whether these are all bytes of the payload, so that the server may have applied it.
    """

    sequence: int
    base: Version
    payload: bytes
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Residual:
    """The residual of lossy deltas: what their encoding left out, which the next delta must add (error feedback).

    All arrays are float32 and one-dimensional.

    Attributes:
        base: the base version of the newest delta.
        two_before: the residual before the delta that preceded it.
        before: the residual before the newest delta.
        due: what the newest delta should encode: -eta * gradient + `before`.
        after: the residual after it: `due` less what its encoding decodes to.
    """

    base: Version
    two_before: Floats
    before: Floats
    due: Floats
    after: Floats


@dataclass(slots=True)
class Session:
    """The candidate's session, as the server knows it and as the candidate must see it.

    Attributes:
        session_id: the 16 bytes with which it joined.
        features: what it announced in Join.
        delta_wire_type, parameter_wire_type: what Join settled.
        is_known: whether the server accepts calls of this session; false from a restart or expiry until the next Join.
        last_applied: the sequence of the newest applied commit; 0 before the first.
        verdict, applied_crc32c, applied_base: verdict, checksum and base version of that commit, to recognise
            and answer repeats.
        snapshot: the parameters that were sent last, from which the next delta must be computed. None if there are none
            or they were lost, so that a Pull must come first.
        previous_snapshot: those before them.
        open_attempt: the commit whose outcome the candidate does not know; None if it knows all.
        refused_payload: the payload that was refused for its values and must not come again.
        early_proceed: the Commit stream and the sequence for which a reply has already brought the proceed.
        announced_eta, previous_eta: the learning rate that was sent to the candidate last, and the one before it.
        residual: what lossy deltas have left out up to the newest one; None if deltas are not lossy.
    """

    session_id: bytes
    features: frozenset[str] = frozenset()
    delta_wire_type: WireType = WireType.FLOAT32
    parameter_wire_type: WireType = WireType.FLOAT32
    is_known: bool = True
    last_applied: int = 0
    verdict: commit_pb2.Verdict | None = None
    applied_crc32c: int = 0
    applied_base: Version | None = None
    snapshot: Snapshot | None = None
    previous_snapshot: Snapshot | None = None
    open_attempt: Attempt | None = None
    refused_payload: bytes | None = None
    early_proceed: tuple[Call, int] | None = None
    announced_eta: float = 0.0
    previous_eta: float = 0.0
    residual: Residual | None = None

    def record_snapshot(self, snapshot: Snapshot) -> None:
        """Record that `snapshot` is being sent, from which the next delta must be computed."""
        if self.snapshot is not None and self.snapshot.is_delivered:
            self.previous_snapshot = self.snapshot
        self.snapshot = snapshot

    def lose_snapshot(self) -> None:
        """Forget the parameters and the open attempt, so that a Pull must come before the next commit."""
        self.previous_snapshot = self.snapshot or self.previous_snapshot
        self.snapshot = self.open_attempt = None

    def record_eta(self, eta: float) -> None:
        """Record the learning rate that an answer to the candidate contains."""
        if eta != self.announced_eta:
            self.previous_eta, self.announced_eta = self.announced_eta, eta


@dataclass(slots=True)
class Central:
    """The central variable and the run around it.

    Attributes:
        task: what the candidate trains; its layout is that of this server's shard.
        theta: all PARAMETERs (float32, one-dimensional); None before there are parameters.
        buffers: the bytes of all BUFFERs.
        clock: the number of commits so far, of the candidate and of others, and 1 for the first parameters.
        incarnation: a random number; a restarted server has another one.
        eta: the learning rate of the next step.
        run_state: whether the run is training or finished.
        settings: the settings of the run, which the answer to Join contains. Their eta is not the current one.
        generation: a number from which the BUFFERs' bytes are made; others' commits increase it.
    """

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
        """The version of the current parameters."""
        return Version(incarnation=self.incarnation, clock=self.clock)

    @property
    def is_finished(self) -> bool:
        """Whether the budget of the run is spent, so that workers must leave."""
        return self.run_state == run_pb2.RUN_STATE_FINISHED

    def load_trained(self, theta: Floats) -> None:
        """Replace the state by that of a run which other workers have trained for 40 commits."""
        self.theta, self.clock = theta.copy(), 41
        self.buffers = buffer_bytes(self.task.layout.buffers, self.generation)

    def initialise(self, theta: Floats, buffers: bytes) -> None:
        """Take the first parameters, which a worker has uploaded."""
        self.theta, self.buffers, self.clock = theta, buffers, 1

    def others_commit(self) -> int:
        """Apply the pretended commits of other workers, and return their number, which is the staleness they add."""
        self.theta = self._theta * np.float32(-1.5)
        self.generation += 1
        self.buffers = buffer_bytes(self.task.layout.buffers, self.generation)
        self.clock += 2
        return 2

    def apply(self, delta: Floats, buffers: bytes) -> None:
        """Apply a commit: theta <- theta + delta, and `buffers` replace the BUFFERs."""
        self.theta, self.buffers = self._theta + delta, buffers
        self.clock += 1

    def snapshot(self) -> Snapshot:
        """Return the current parameters, to be sent."""
        return Snapshot(self.newest_version, self._theta, self.buffers)

    @property
    def _theta(self) -> Floats:
        if self.theta is None:
            raise AssertionError("there are no parameters")
        return self.theta


def decoded(wire_type: WireType, data: bytes, count: int) -> Floats:
    """Return the `count` float32 values that `data` encodes in a wire type, in a new array."""
    out = np.empty(count, np.float32)
    decode(wire_type, memoryview(data), out)
    return out


def describe(version: Version) -> str:
    """Return a version as faults show it, such as "(incarnation 7, clock 42)"."""
    return f"(incarnation {version.incarnation}, clock {version.clock})"
