"""Judges commits: the header when it arrives, the values when the payload is complete.

The functions take the candidate's session and the message, and know nothing of the scenario. They raise a FaultError
for what the contract forbids, and record in the session only the residual of lossy deltas.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gemps.limits import SAMPLES, WHOLE_PAYLOAD_BYTES
from gemps.v1 import commit_pb2, run_pb2
from gemps.v1.transfer_pb2 import Version
from numpy.typing import NDArray

from gem_conformance.faults import FaultError, FaultName, Place
from gem_conformance.grpc_server import Call
from gem_conformance.judge_values import Expected, Mistake, Upload, judge_values, name_of
from gem_conformance.state import Residual, Session, Snapshot, decoded, describe
from gem_conformance.task import delta
from gem_core.checksum import crc32c
from gem_core.errors import SelectionError
from gem_core.payload import PayloadFormat
from gem_core.selection import Selection
from gem_core.wire_types import BLOCKS, encode

__all__ = ["Commit", "buffers_after", "judge_checksum", "judge_header", "judge_payload", "receive_whole", "values_of"]


@dataclass(slots=True)
class Commit:
    """A commit whose header was judged, and whose payload is coming in.

    Attributes:
        call: the Commit stream.
        header: its header.
        first_message: the message that has the header, and in a small commit also the payload.
        upload: the payload that is coming in.
        base: the parameters from which the delta must have been computed; None for a repeat of an applied commit.
        identical_to: the bytes with which the payload must begin, because they were sent before under this sequence.
    """

    call: Call
    header: commit_pb2.CommitHeader
    first_message: commit_pb2.CommitRequest
    upload: Upload
    base: Snapshot | None
    identical_to: bytes = b""

    @property
    def is_repeat(self) -> bool:
        """Whether this commit was applied before, so that it must only be answered."""
        return self.base is None

    @property
    def is_header_alone(self) -> bool:
        """Whether the first message has the header only, so that the payload must wait for the server's proceed."""
        return not self.first_message.chunk and not self.first_message.HasField("footer")


def judge_header(
    call: Call,
    message: commit_pb2.CommitRequest,
    session: Session,
    payload: PayloadFormat,
    settings: run_pb2.RunSettings,
) -> Commit:
    """Judge the header of a commit and return the commit.

    Args:
        call: the Commit stream.
        message: the message with the header.
        session: the candidate's session, which the server must know.
        payload: the format of a payload with all BUFFERs.
        settings: the settings of the run.

    Raises:
        FaultError: the header breaks a rule.
    """
    header = message.header
    payload = _selecting(payload, header)
    base = header.base_version
    is_repeat = session.verdict is not None and (header.sequence, base) == (session.last_applied, session.applied_base)
    if not is_repeat:
        _judge_sequence(session, header.sequence, base)
    _judge_fields(header, session, payload, settings)
    upload = Upload(payload, f"commit {header.sequence}")
    if is_repeat:
        _judge_repeat(header, session.applied_crc32c)
        return Commit(call, header, message, upload, None)
    commit = Commit(call, header, message, upload, _judge_base(session, base))
    earlier = session.open_attempt
    if earlier is not None and earlier.base == base:
        commit.identical_to = earlier.payload
        if earlier.is_whole:
            _judge_repeat(header, crc32c(earlier.payload))
    _record_residual(session, commit)
    return commit


def receive_whole(commit: Commit) -> None:
    """Take the payload that came in the same message as its header. Raises FaultError if it is too large for that."""
    if commit.header.byte_count > WHOLE_PAYLOAD_BYTES:
        raise FaultError(
            FaultName.DATA_BEFORE_PROCEED,
            f"a header alone for {commit.header.byte_count} bytes, more than {WHOLE_PAYLOAD_BYTES}",
            "a header with a chunk or footer",
            Place.COMMIT,
        )
    first = commit.first_message
    commit.upload.receive(first.chunk, first.footer if first.HasField("footer") else None)


def judge_payload(commit: Commit, session: Session, settings: run_pb2.RunSettings) -> None:
    """Judge the complete payload of a commit that was not applied before. Raises FaultError if it is wrong."""
    judge_checksum(commit)
    if commit.base is None:
        raise AssertionError("a repeat has no new payload")
    data, payload, what = bytes(commit.upload.received), commit.upload.payload, commit.upload.label
    _judge_identity(commit, data, what)
    if data == session.refused_payload:
        expected = f"{what}: another delta than the one that was refused for its values"
        raise FaultError(FaultName.REPEATED_DELTA, expected, "the same bytes again", Place.ERRORS)
    theta, eta = commit.base.as_decoded(session.parameter_wire_type), session.announced_eta
    rest = b"".join(commit.base.buffers[start:stop] for start, stop in payload.rest_ranges())
    if settings.local_steps > 1:
        _judge_local_steps(commit, theta, eta, settings)
        return
    right = delta(theta, eta) if session.residual is None else session.residual.due
    scaled = _Scaled(commit.header, theta, eta)
    mistakes = [
        Mistake(one.name, one.right, one.wrong, one.place, scaled.sent(one.parameters))
        for one in _mistakes(session, settings, theta, right)
    ]
    judge_values(payload, data, Expected(scaled.sent(right), rest, Place.CONFORMANCE, mistakes), what)


def values_of(commit: Commit) -> NDArray[np.float32]:
    """Return the delta of a complete payload: its PARAMETERs times the header's `scale` (float32, one-dimensional)."""
    payload = commit.upload.payload
    data = bytes(commit.upload.received)[: payload.parameter_bytes]
    values = decoded(payload.wire_type, data, payload.layout.parameter_count)
    return values * np.float32(commit.header.scale) if commit.header.HasField("scale") else values


def buffers_after(commit: Commit, buffers: bytes) -> bytes:
    """Return the bytes of all BUFFERs after a commit, which replaces those that its payload contains in `buffers`."""
    payload = commit.upload.payload
    after = bytearray(buffers)
    sent = bytes(commit.upload.received)[payload.parameter_bytes :]
    for start, stop in payload.rest_ranges():
        after[start:stop], sent = sent[: stop - start], sent[stop - start :]
    return bytes(after)


def judge_checksum(commit: Commit) -> None:
    """Compare the header's payload_crc32c, if it is set, with the payload. Raises FaultError if they differ."""
    header, crc = commit.header, commit.upload.crc32c
    if header.HasField("payload_crc32c") and header.payload_crc32c != crc:
        raise FaultError(
            FaultName.WRONG_CHECKSUM,
            f"payload_crc32c {crc:#010x}, of the bytes that were sent",
            f"{header.payload_crc32c:#010x}",
            Place.COMMIT,
        )


class _Scaled:
    """Converts deltas to what a payload contains whose header has `scale`. Raises FaultError for an illegal scale."""

    def __init__(self, header: commit_pb2.CommitHeader, theta: NDArray[np.float32], eta: float) -> None:
        self._scale = np.float32(header.scale) if header.HasField("scale") else None
        self._theta = theta if self._scale == np.float32(-eta) else None
        self._delta = delta(theta, eta)
        if self._scale is not None and not (np.isfinite(self._scale) and self._scale):
            raise FaultError(FaultName.MALFORMED, "a finite scale other than 0", f"{self._scale}", Place.COMMIT)

    def sent(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the PARAMETERs that encode a delta: the delta divided by `scale`.

        For -eta * theta with scale -eta they are exactly theta, as the worker sends its gradient without a division.
        """
        if self._scale is None:
            return values
        if self._theta is not None and np.array_equal(values, self._delta):
            return self._theta
        return (values / self._scale).astype(np.float32)


def _selecting(payload: PayloadFormat, header: commit_pb2.CommitHeader) -> PayloadFormat:
    """Return the format of the payload, which has only the BUFFERs that the header selects."""
    if not header.HasField("buffers"):
        return payload
    try:
        return PayloadFormat(payload.layout, payload.wire_type, Selection(tuple(header.buffers.runs)))
    except SelectionError as error:
        expected = "runs of BUFFERs as in transfer.proto"
        raise FaultError(FaultName.MALFORMED, expected, str(error), Place.TRANSFER) from error


def _judge_sequence(session: Session, sequence: int, base: Version) -> None:
    earlier, expected = session.open_attempt, session.last_applied + 1
    if earlier is not None and earlier.base == base and sequence != earlier.sequence:
        raise FaultError(
            FaultName.NEW_SEQUENCE_ON_RETRY,
            f"Join and Pull, or sequence {earlier.sequence} again, whose outcome is open",
            f"sequence {sequence} for a delta of the same base",
            Place.RULE,
        )
    if sequence != expected:
        wanted = f"sequence {expected}: the last applied one + 1"
        raise FaultError(FaultName.WRONG_SEQUENCE, wanted, f"{sequence}", Place.COMMIT)


def _judge_fields(
    header: commit_pb2.CommitHeader, session: Session, payload: PayloadFormat, settings: run_pb2.RunSettings
) -> None:
    if header.wire_type != int(session.delta_wire_type):
        expected = f"{session.delta_wire_type.name}, which Join settled"
        raise FaultError(FaultName.WRONG_WIRE_TYPE, expected, f"wire type {header.wire_type}", Place.COMMIT)
    if header.byte_count != payload.byte_count:
        expected = f"{payload.byte_count} bytes: PARAMETERs in {payload.wire_type.name}, then BUFFERs"
        raise FaultError(FaultName.WRONG_SIZE, expected, f"a header of {header.byte_count} bytes", Place.TRANSFER)
    illegal = [name for name in ("shared_memory", "eta") if header.HasField(name)]
    if illegal or header.decays or header.samples > SAMPLES:
        came = ", ".join(illegal) or f"decays {list(header.decays)}, samples {header.samples}"
        expected = "no shared_memory, eta nor decays here, and at most 2^32 samples"
        raise FaultError(FaultName.MALFORMED, expected, came, Place.COMMIT)
    wanted, came_steps = settings.local_steps or 1, header.local_steps or 1
    if came_steps != wanted and not (header.leaves and came_steps < wanted):
        expected = f"local_steps = {wanted}, which is the run's"
        raise FaultError(FaultName.IGNORED_LOCAL_STEPS, expected, f"{header.local_steps}", Place.COMMIT)


def _judge_base(session: Session, base: Version) -> Snapshot:
    held = session.snapshot
    if held is None or base != held.version:
        wanted = f"the version that this session got last, {describe(held.version)}" if held else "a Pull first"
        raise FaultError(FaultName.STALE_BASE, wanted, f"base version {describe(base)}", Place.COMMIT)
    if not held.is_delivered:
        expected = "a base whose parameters came complete, with a footer that matches"
        came = f"base version {describe(base)}: {held.defect}"
        raise FaultError(FaultName.UNFINISHED_PARAMETERS, expected, came, Place.TRANSFER)
    return held


def _judge_repeat(header: commit_pb2.CommitHeader, expected: int) -> None:
    if not header.HasField("payload_crc32c"):
        wanted = "payload_crc32c in the header of a repeat, or Join and Pull, and a new delta"
        came = f"a header of sequence {header.sequence} without it"
        raise FaultError(FaultName.NO_CHECKSUM_IN_REPEAT, wanted, came, Place.COMMIT)
    if header.payload_crc32c != expected:
        wanted = f"the identical bytes again, CRC32C {expected:#010x}"
        came = f"payload_crc32c {header.payload_crc32c:#010x} under the same sequence"
        raise FaultError(FaultName.OTHER_BYTES_ON_RETRY, wanted, came, Place.COMMIT)


def _judge_identity(commit: Commit, data: bytes, what: str) -> None:
    earlier = commit.identical_to
    if data[: len(earlier)] != earlier:
        at = next(index for index, pair in enumerate(zip(data, earlier, strict=False)) if pair[0] != pair[1])
        raise FaultError(
            FaultName.OTHER_BYTES_ON_RETRY,
            f"{what}: the identical bytes again, {earlier[at]:#04x} at offset {at}",
            f"{data[at]:#04x} there, under the same sequence and base",
            Place.COMMIT,
        )


def _record_residual(session: Session, commit: Commit) -> None:
    """Record what this delta leaves out. The next one must add it, even if this one is dropped (transfer.proto)."""
    wire_type, base = session.delta_wire_type, commit.base
    known = session.residual
    if wire_type not in BLOCKS or base is None or (known is not None and known.base == base.version):
        return
    alone = delta(base.as_decoded(session.parameter_wire_type), session.announced_eta)
    before, two_before = (known.after, known.before) if known is not None else (np.zeros_like(alone),) * 2
    due = before + alone
    sent = decoded(wire_type, bytes(encode(wire_type, due)), due.size)
    session.residual = Residual(base.version, two_before, before, due, due - sent)


def _mistakes(
    session: Session, settings: run_pb2.RunSettings, theta: NDArray[np.float32], right: NDArray[np.float32]
) -> list[Mistake]:
    """Return wrong deltas that workers commit by known mistakes, to name the mistake if one of them came."""
    eta = session.announced_eta
    found: list[Mistake] = []
    residual, alone = session.residual, delta(theta, eta)
    if residual is not None:
        wanted = "-eta * gradient and what all deltas before left out, dropped ones too"
        wrong = {
            "-eta * gradient alone": alone,
            "that without what the delta before left out": alone + residual.two_before,
        }
        found += [Mistake(FaultName.WRONG_LEFT_OUT, wanted, text, Place.TRANSFER, wrong[text]) for text in wrong]
    found.append(Mistake(FaultName.WRONG_VALUES, "-eta * gradient", "+eta * gradient", Place.CONFORMANCE, -right))
    found.append(Mistake(FaultName.WRONG_VALUES, "-eta * gradient", "the gradient", Place.CONFORMANCE, theta))
    if session.previous_snapshot is not None:
        stale = delta(session.previous_snapshot.as_decoded(session.parameter_wire_type), eta)
        wanted, came = "a delta of the parameters of its base version", "one of those that the worker had before"
        found.append(Mistake(FaultName.STALE_DELTA, wanted, came, Place.RULE, stale))
    for other, when in ((session.previous_eta, "sent before that"), (settings.eta, "of the run's settings")):
        if other != eta:
            wanted, came = f"next_eta, {eta:g}, as it was sent last", f"{other:g}, {when}"
            found.append(Mistake(FaultName.IGNORED_ETA, wanted, came, Place.SESSION, delta(theta, other)))
    return found


def _judge_local_steps(commit: Commit, theta: NDArray[np.float32], eta: float, settings: run_pb2.RunSettings) -> None:
    """Judge a delta of local steps: -eta times the sum or mean of the gradients.

    Values may deviate a little, because the contract leaves open in which order a worker adds the gradients.
    """
    steps, rate = settings.local_steps, np.float32(eta)
    total, own = np.zeros_like(theta), theta.copy()
    for _ in range(steps):
        total += own
        if not settings.scale_local_steps:  # before the first commit there is no mean of squares
            own -= np.float32(settings.local_rate) * rate * own
    of_sum, of_mean = -rate * total, -rate * total / np.float32(steps)
    right, wanted = of_sum, f"-eta times the sum of {steps} local gradients"
    if settings.normalise_local_steps:
        right, wanted = of_mean, f"{wanted} divided by {steps}"
    came = values_of(commit)
    if _is_close(came, right):
        return
    known = {"the sum": of_sum, "the sum divided by their number": of_mean, "one gradient alone": -rate * theta}
    found = next((f"-eta times {name}" for name, values in known.items() if _is_close(came, values)), "another delta")
    element = int(np.argmax(np.abs(came - right)))
    raise FaultError(
        FaultName.IGNORED_LOCAL_STEPS,
        f"{commit.upload.label}: {wanted}: {name_of(commit.upload.payload, element)} = {float(right[element]):.7g}",
        f"{found}: {float(came[element]):.7g}",
        Place.RUN,
    )


def _is_close(came: NDArray[np.float32], values: NDArray[np.float32]) -> bool:
    return bool(np.allclose(came, values, rtol=1e-4, atol=1e-6))
