"""Judges commits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gemps.limits import WHOLE_PAYLOAD_BYTES
from gemps.v1 import commit_pb2
from numpy.typing import NDArray

from gem_conformance.central import Central, Clock, Session, Snapshot
from gem_conformance.faults import FaultError, FaultName, Place
from gem_conformance.judge import Expected, Mistake, Upload, judge_values
from gem_conformance.task import delta
from gem_conformance.wire import Call
from gem_core.checksum import crc32c
from gem_core.errors import SelectionError
from gem_core.payload import PayloadFormat
from gem_core.selection import Selection
from gem_core.wire_types import BLOCKS

__all__ = ["Commit", "buffers_after", "judge_checksum", "judge_header", "judge_payload", "receive_whole"]


@dataclass(slots=True)
class Commit:
    """Judged header.

    `base`: parameters of its delta; None in a repeat. `identical_to`: required payload prefix.
    """

    call: Call
    header: commit_pb2.CommitHeader
    first: commit_pb2.CommitRequest
    upload: Upload
    base: Snapshot | None
    identical_to: bytes = b""

    @property
    def is_repeat(self) -> bool:
        """Whether already applied."""
        return self.base is None

    @property
    def is_alone(self) -> bool:
        """Whether it came without payload."""
        return not self.first.chunk and not self.first.HasField("footer")


def judge_header(
    call: Call, message: commit_pb2.CommitRequest, session: Session, payload: PayloadFormat, chunk_bytes: int
) -> Commit:
    """Judge a known session's header. Raises FaultError."""
    header = message.header
    payload = _selecting(payload, header)
    base = Clock.from_wire(header.base_version)
    is_repeat = session.stored is not None and header.sequence == session.last_applied
    if not is_repeat:
        _judge_sequence(session, header.sequence, base)
    if header.wire_type != int(session.delta_wire_type):
        raise FaultError(
            FaultName.WRONG_WIRE_TYPE,
            f"{session.delta_wire_type.name}, which Join settled",
            f"a header of wire type {header.wire_type}",
            Place.COMMIT,
        )
    if header.byte_count != payload.byte_count:
        raise FaultError(
            FaultName.WRONG_SIZE,
            f"{payload.byte_count} bytes: PARAMETERs in {payload.wire_type.name}, then BUFFERs",
            f"a header of {header.byte_count} bytes",
            Place.PAYLOADS,
        )
    if header.HasField("shared_memory") or header.HasField("scale"):
        raise FaultError(
            FaultName.MALFORMED,
            "neither shared_memory nor scale in this wire type",
            "a header with one",
            Place.COMMIT,
        )
    upload = Upload(payload, f"commit {header.sequence}")
    if is_repeat:
        if session.content is None:
            raise AssertionError("nothing was applied")
        _judge_repeat(header, session.content.crc32c)
        return Commit(call, header, message, upload, None)
    commit = Commit(call, header, message, upload, _judge_base(session, base, payload))
    earlier = session.open
    if earlier is not None and earlier.base == base:
        commit.identical_to = earlier.payload
        if earlier.is_unknown:
            _judge_repeat(header, crc32c(earlier.payload))
    return commit


def receive_whole(commit: Commit) -> None:
    """Take a small payload. Raises FaultError."""
    if commit.header.byte_count > WHOLE_PAYLOAD_BYTES:
        raise FaultError(
            FaultName.DATA_BEFORE_PROCEED,
            f"a header alone for {commit.header.byte_count} bytes, more than {WHOLE_PAYLOAD_BYTES}",
            "a header with a chunk or footer",
            Place.COMMIT,
        )
    first = commit.first
    commit.upload.receive(first.chunk, first.footer if first.HasField("footer") else None)


def judge_payload(commit: Commit, session: Session, central: Central) -> None:
    """Judge a new commit. Raises FaultError."""
    data, what = bytes(commit.upload.received), f"commit {commit.header.sequence}"
    payload = commit.upload.payload
    judge_checksum(commit)
    earlier = commit.identical_to
    if data[: len(earlier)] != earlier:
        at = next(index for index, pair in enumerate(zip(data, earlier, strict=False)) if pair[0] != pair[1])
        raise FaultError(
            FaultName.OTHER_BYTES_ON_RETRY,
            f"{what}: the identical bytes again, {earlier[at]:#04x} at offset {at}",
            f"{data[at]:#04x} there, under the same sequence and base",
            Place.RETRIES,
        )
    if commit.base is None:
        raise AssertionError("a repeat has no new payload")
    theta, eta = commit.base.seen(session.parameter_wire_type), session.told_eta
    if central.local_steps > 1:
        _judge_local_steps(payload, data, theta, central, what)
        return
    right = alone = delta(theta, eta)
    mistakes = []
    if session.delta_wire_type in BLOCKS:
        right = session.due = alone + session.left_out
        wanted = "-eta * gradient and what earlier deltas left out"
        mistakes.append(Mistake(FaultName.WRONG_VALUES, wanted, "-eta * gradient alone", Place.PAYLOADS, alone))
    mistakes.append(Mistake(FaultName.WRONG_VALUES, "-eta * gradient", "+eta * gradient", Place.COMMIT, -right))
    if session.before is not None:
        stale = delta(session.before.seen(session.parameter_wire_type), eta)
        wanted, found = "a delta of the parameters of its base version", "one of those that the worker had before"
        mistakes.append(Mistake(FaultName.STALE_DELTA, wanted, found, Place.RETRIES, stale))
    if session.eta_before != eta:
        wanted, found = f"the learning rate {eta:g}, sent last", f"{session.eta_before:g}, sent before that"
        earlier_eta = delta(theta, session.eta_before)
        mistakes.append(Mistake(FaultName.IGNORED_ETA, wanted, found, Place.SESSIONS, earlier_eta))
    rest = b"".join(commit.base.buffers[start:stop] for start, stop in payload.rest_ranges())
    judge_values(payload, data, Expected(right, rest, Place.CONFORMANCE, mistakes), what)


def buffers_after(commit: Commit, central: Central) -> bytes:
    """All BUFFERs after a commit, which replaces those that it brings."""
    payload = commit.upload.payload
    after = bytearray(central.buffers)
    sent = bytes(commit.upload.received)[payload.parameter_bytes :]
    for start, stop in payload.rest_ranges():
        after[start:stop], sent = sent[: stop - start], sent[stop - start :]
    return bytes(after)


def judge_checksum(commit: Commit) -> None:
    """Check payload_crc32c, if present. Raises FaultError."""
    header, crc = commit.header, commit.upload.crc32c
    if header.HasField("payload_crc32c") and header.payload_crc32c != crc:
        raise FaultError(
            FaultName.WRONG_CHECKSUM,
            f"payload_crc32c {crc:#010x}, of the bytes that were sent",
            f"{header.payload_crc32c:#010x}",
            Place.CHUNKS,
        )


def _selecting(payload: PayloadFormat, header: commit_pb2.CommitHeader) -> PayloadFormat:
    """The payload's format, with the BUFFERs that the header selects."""
    if not header.HasField("buffers"):
        return payload
    try:
        return PayloadFormat(payload.layout, payload.wire_type, Selection(tuple(header.buffers.runs)))
    except SelectionError as error:
        raise FaultError(
            FaultName.MALFORMED, "runs of BUFFERs as in transfer.proto", f"{error}", Place.COMMIT
        ) from error


def _judge_sequence(session: Session, sequence: int, base: Clock) -> None:
    earlier, expected = session.open, session.last_applied + 1
    if earlier is not None and earlier.base == base and sequence != earlier.sequence:
        raise FaultError(
            FaultName.NEW_SEQUENCE_ON_RETRY,
            f"sequence {earlier.sequence} again, whose outcome is not known or which is to be sent again",
            f"sequence {sequence} for a delta of the same base",
            Place.RETRIES,
        )
    if sequence != expected:
        raise FaultError(
            FaultName.WRONG_SEQUENCE, f"sequence {expected}: the last applied one + 1", f"{sequence}", Place.COMMIT
        )


def _judge_base(session: Session, base: Clock, payload: PayloadFormat) -> Snapshot:
    held = session.snapshot
    if held is None or base != held.version:
        wanted = f"the version that this session was given last, {held.version}" if held else "a Pull first"
        raise FaultError(FaultName.STALE_BASE, wanted, f"base version {base}", Place.VERSIONS)
    if not held.is_delivered:
        raise FaultError(
            FaultName.UNFINISHED_PARAMETERS,
            "a base whose parameters came complete, with a footer that matches",
            f"base version {base}: {held.lacks}",
            Place.CHUNKS,
        )
    return held


def _judge_repeat(header: commit_pb2.CommitHeader, expected: int) -> None:
    if not header.HasField("payload_crc32c"):
        raise FaultError(
            FaultName.NO_CHECKSUM_IN_REPEAT,
            "payload_crc32c in the header of a repeat",
            f"a header of sequence {header.sequence} without it",
            Place.RETRIES,
        )
    if header.payload_crc32c != expected:
        raise FaultError(
            FaultName.OTHER_BYTES_ON_RETRY,
            f"the identical bytes again, CRC32C {expected:#010x}",
            f"payload_crc32c {header.payload_crc32c:#010x} under the same sequence",
            Place.RETRIES,
        )


def _judge_local_steps(
    payload: PayloadFormat, data: bytes, theta: NDArray[np.float32], central: Central, what: str
) -> None:
    """-eta times the gradients' sum, or mean, in any order."""
    steps, rate = central.local_steps, np.float32(central.eta)
    total, own = np.zeros_like(theta), theta.copy()
    for _ in range(steps):
        total += own
        if not central.scale_local_steps:  # there is no commit yet
            own -= np.float32(central.local_rate) * rate * own
    of_sum, of_mean = -rate * total, -rate * total / np.float32(steps)
    came = np.frombuffer(data, "<f4", theta.size)
    if central.normalise_local_steps:
        right, wanted = of_mean, f"-eta times the sum of {steps} local gradients divided by {steps}"
    else:
        right, wanted = of_sum, f"-eta times the sum of {steps} local gradients"
    if _is_close(came, right):
        return
    found = "another delta"
    known = ((of_sum, "the sum"), (of_mean, "the sum divided by their number"), (-rate * theta, "one gradient alone"))
    for values, name in known:
        if _is_close(came, values):
            found = f"-eta times {name}"
            break
    element = int(np.argmax(np.abs(came - right)))
    spec, index = payload.layout.locate_parameter(element)
    raise FaultError(
        FaultName.IGNORED_LOCAL_STEPS,
        f"{what}: {wanted}, or the end of a worker that does not speak local steps: element {index} of {spec.name!r} = "
        f"{float(right[element]):.7g}",
        f"{found}: {float(came[element]):.7g}",
        Place.COMMIT,
    )


def _is_close(came: NDArray[np.float32], values: NDArray[np.float32]) -> bool:
    return bool(np.allclose(came, values, rtol=1e-4, atol=1e-6))
