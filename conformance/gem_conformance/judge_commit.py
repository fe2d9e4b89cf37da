"""Judges commits: the header when it comes, the values when the payload is complete."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gemps.limits import SAMPLES, WHOLE_PAYLOAD_BYTES
from gemps.v1 import commit_pb2, run_pb2
from gemps.v1.transfer_pb2 import Version
from numpy.typing import NDArray

from gem_conformance.faults import FaultError, FaultName, Place
from gem_conformance.judge_values import Expected, Mistake, Upload, judge_values, name_of
from gem_conformance.state import LeftOut, Session, Snapshot, decoded, text_of
from gem_conformance.task import delta
from gem_conformance.wire import Call
from gem_core.checksum import crc32c
from gem_core.errors import SelectionError
from gem_core.payload import PayloadFormat
from gem_core.selection import Selection
from gem_core.wire_types import BLOCKS, encode

__all__ = ["Commit", "buffers_after", "judge_checksum", "judge_header", "judge_payload", "receive_whole", "values_of"]


@dataclass(slots=True)
class Commit:
    """A commit whose header was judged.

    `base`: the parameters that its delta is of; None: a repeat of what was applied. `identical_to`: bytes with which
    the payload must begin, because they were sent before.
    """

    call: Call
    header: commit_pb2.CommitHeader
    first: commit_pb2.CommitRequest
    upload: Upload
    base: Snapshot | None
    identical_to: bytes = b""

    @property
    def is_repeat(self) -> bool:
        """Whether it was applied already."""
        return self.base is None

    @property
    def is_alone(self) -> bool:
        """Whether the header came without payload."""
        return not self.first.chunk and not self.first.HasField("footer")


def judge_header(
    call: Call,
    message: commit_pb2.CommitRequest,
    session: Session,
    payload: PayloadFormat,
    settings: run_pb2.RunSettings,
) -> Commit:
    """Judge a header of a known session. Raises FaultError."""
    header = message.header
    payload = _selecting(payload, header)
    base = header.base_version
    is_repeat = session.stored is not None and header.sequence == session.last_applied and base == session.base
    if not is_repeat:
        _judge_sequence(session, header.sequence, base)
    _judge_fields(header, session, payload, settings)
    upload = Upload(payload, f"commit {header.sequence}")
    if is_repeat:
        _judge_repeat(header, session.crc32c)
        return Commit(call, header, message, upload, None)
    commit = Commit(call, header, message, upload, _judge_base(session, base))
    earlier = session.open
    if earlier is not None and earlier.base == base:
        commit.identical_to = earlier.payload
        if earlier.is_whole:
            _judge_repeat(header, crc32c(earlier.payload))
    _record_left_out(session, commit)
    return commit


def receive_whole(commit: Commit) -> None:
    """Take a small payload from its header's message. Raises FaultError."""
    if commit.header.byte_count > WHOLE_PAYLOAD_BYTES:
        raise FaultError(
            FaultName.DATA_BEFORE_PROCEED,
            f"a header alone for {commit.header.byte_count} bytes, more than {WHOLE_PAYLOAD_BYTES}",
            "a header with a chunk or footer",
            Place.COMMIT,
        )
    first = commit.first
    commit.upload.receive(first.chunk, first.footer if first.HasField("footer") else None)


def judge_payload(commit: Commit, session: Session, settings: run_pb2.RunSettings) -> None:
    """Judge the complete payload of a new commit. Raises FaultError."""
    judge_checksum(commit)
    if commit.base is None:
        raise AssertionError("a repeat has no new payload")
    data, payload, what = bytes(commit.upload.received), commit.upload.payload, commit.upload.what
    _judge_identity(commit, data, what)
    if data == session.refused:
        expected = f"{what}: another delta than the one that was refused for its values"
        raise FaultError(FaultName.REPEATED_DELTA, expected, "the same bytes again", Place.ERRORS)
    theta, eta = commit.base.seen(session.parameter_wire_type), session.told_eta
    rest = b"".join(commit.base.buffers[start:stop] for start, stop in payload.rest_ranges())
    if settings.local_steps > 1:
        _judge_local_steps(commit, theta, eta, settings)
        return
    right = delta(theta, eta) if session.left_out is None else session.left_out.due
    scaled = _Scaled(commit.header, theta, eta)
    mistakes = [
        Mistake(one.name, one.right, one.wrong, one.place, scaled.sent(one.parameters))
        for one in _mistakes(session, settings, theta, right)
    ]
    judge_values(payload, data, Expected(scaled.sent(right), rest, Place.CONFORMANCE, mistakes), what)


def values_of(commit: Commit) -> NDArray[np.float32]:
    """Return the delta of a complete payload: its PARAMETERs, times `scale`."""
    payload = commit.upload.payload
    data = bytes(commit.upload.received)[: payload.parameter_bytes]
    values = decoded(payload.wire_type, data, payload.layout.parameter_count)
    return values * np.float32(commit.header.scale) if commit.header.HasField("scale") else values


def buffers_after(commit: Commit, buffers: bytes) -> bytes:
    """Return all BUFFERs after a commit, which replaces those that it brings."""
    payload = commit.upload.payload
    after = bytearray(buffers)
    sent = bytes(commit.upload.received)[payload.parameter_bytes :]
    for start, stop in payload.rest_ranges():
        after[start:stop], sent = sent[: stop - start], sent[stop - start :]
    return bytes(after)


def judge_checksum(commit: Commit) -> None:
    """Check payload_crc32c, if the header has it. Raises FaultError."""
    header, crc = commit.header, commit.upload.crc32c
    if header.HasField("payload_crc32c") and header.payload_crc32c != crc:
        raise FaultError(
            FaultName.WRONG_CHECKSUM,
            f"payload_crc32c {crc:#010x}, of the bytes that were sent",
            f"{header.payload_crc32c:#010x}",
            Place.COMMIT,
        )


class _Scaled:
    """What the payload has where its header has `scale`."""

    def __init__(self, header: commit_pb2.CommitHeader, theta: NDArray[np.float32], eta: float) -> None:
        self._scale = np.float32(header.scale) if header.HasField("scale") else None
        self._theta = theta if self._scale == np.float32(-eta) else None
        self._delta = delta(theta, eta)
        if self._scale is not None and not (np.isfinite(self._scale) and self._scale):
            raise FaultError(FaultName.MALFORMED, "a finite scale other than 0", f"{self._scale}", Place.COMMIT)

    def sent(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the PARAMETERs to be sent for a delta; exactly theta for -eta * theta."""
        if self._scale is None:
            return values
        if self._theta is not None and np.array_equal(values, self._delta):
            return self._theta
        return (values / self._scale).astype(np.float32)


def _selecting(payload: PayloadFormat, header: commit_pb2.CommitHeader) -> PayloadFormat:
    """The payload's format, with the BUFFERs that the header selects."""
    if not header.HasField("buffers"):
        return payload
    try:
        return PayloadFormat(payload.layout, payload.wire_type, Selection(tuple(header.buffers.runs)))
    except SelectionError as error:
        expected = "runs of BUFFERs as in transfer.proto"
        raise FaultError(FaultName.MALFORMED, expected, str(error), Place.TRANSFER) from error


def _judge_sequence(session: Session, sequence: int, base: Version) -> None:
    earlier, expected = session.open, session.last_applied + 1
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
        wanted = f"the version that this session was given last, {text_of(held.version)}" if held else "a Pull first"
        raise FaultError(FaultName.STALE_BASE, wanted, f"base version {text_of(base)}", Place.COMMIT)
    if not held.is_delivered:
        expected = "a base whose parameters came complete, with a footer that matches"
        came = f"base version {text_of(base)}: {held.lacks}"
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


def _record_left_out(session: Session, commit: Commit) -> None:
    """Note what this delta leaves out, also if it is dropped: the next one must bring it (transfer.proto)."""
    wire_type, base = session.delta_wire_type, commit.base
    known = session.left_out
    if wire_type not in BLOCKS or base is None or (known is not None and known.base == base.version):
        return
    alone = delta(base.seen(session.parameter_wire_type), session.told_eta)
    before, before_that = (known.after, known.before) if known is not None else (np.zeros_like(alone),) * 2
    due = before + alone
    sent = decoded(wire_type, bytes(encode(wire_type, due)), due.size)
    session.left_out = LeftOut(base.version, before_that, before, due, due - sent)


def _mistakes(
    session: Session, settings: run_pb2.RunSettings, theta: NDArray[np.float32], right: NDArray[np.float32]
) -> list[Mistake]:
    """Wrong deltas that are worth a name."""
    eta = session.told_eta
    found: list[Mistake] = []
    left, alone = session.left_out, delta(theta, eta)
    if left is not None:
        wanted = "-eta * gradient and what all deltas before left out, dropped ones too"
        wrong = {
            "-eta * gradient alone": alone,
            "that without what the delta before left out": alone + left.before_that,
        }
        found += [Mistake(FaultName.WRONG_LEFT_OUT, wanted, text, Place.TRANSFER, wrong[text]) for text in wrong]
    found.append(Mistake(FaultName.WRONG_VALUES, "-eta * gradient", "+eta * gradient", Place.CONFORMANCE, -right))
    found.append(Mistake(FaultName.WRONG_VALUES, "-eta * gradient", "the gradient", Place.CONFORMANCE, theta))
    if session.before is not None:
        stale = delta(session.before.seen(session.parameter_wire_type), eta)
        wanted, came = "a delta of the parameters of its base version", "one of those that the worker had before"
        found.append(Mistake(FaultName.STALE_DELTA, wanted, came, Place.RULE, stale))
    for other, when in ((session.eta_before, "sent before that"), (settings.eta, "of the run's settings")):
        if other != eta:
            wanted, came = f"next_eta, {eta:g}, as it was sent last", f"{other:g}, {when}"
            found.append(Mistake(FaultName.IGNORED_ETA, wanted, came, Place.SESSION, delta(theta, other)))
    return found


def _judge_local_steps(commit: Commit, theta: NDArray[np.float32], eta: float, settings: run_pb2.RunSettings) -> None:
    """-eta times the gradients' sum, or mean, in any order of additions."""
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
        f"{commit.upload.what}: {wanted}: {name_of(commit.upload.payload, element)} = {float(right[element]):.7g}",
        f"{found}: {float(came[element]):.7g}",
        Place.RUN,
    )


def _is_close(came: NDArray[np.float32], values: NDArray[np.float32]) -> bool:
    return bool(np.allclose(came, values, rtol=1e-4, atol=1e-6))
