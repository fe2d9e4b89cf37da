"""Judges a Pull request, and decides how a correct server answers it."""

from __future__ import annotations

from dataclasses import dataclass

from gemps.v1 import parameters_pb2
from gemps.v1.transfer_pb2 import Version

from gem_conformance.faults import FaultError, FaultName, Place
from gem_conformance.grpc_server import Call, Refusal
from gem_conformance.refusals import refusal_of
from gem_conformance.state import Central, Session, Snapshot, describe
from gem_core.payload import PayloadFormat

__all__ = ["Pull", "judge_pull"]


@dataclass(slots=True)
class Pull:
    """A pull that must be answered with the payload of `snapshot`, from byte `offset` on."""

    call: Call
    snapshot: Snapshot
    offset: int


def judge_pull(
    call: Call,
    request: parameters_pb2.PullRequest,
    session: Session,
    central: Central,
    sent_bytes: int,
    pulled_clock: int | None = None,
) -> Pull | Refusal | parameters_pb2.NotModified:
    """Decide how to answer a pull. Unless it resumes an earlier one, it replaces the snapshot of the session.

    Args:
        call: the call of the pull.
        request: the request.
        session: the candidate's session, which the server must know.
        central: what the server holds.
        sent_bytes: how many bytes of the snapshot's payload were sent before; a pull may resume there or earlier.
        pulled_clock: at a secondary shard, the clock of the version that the primary sent; None at the primary.

    Returns:
        What to send, the refusal, or that the candidate has the newest version already.

    Raises:
        FaultError: the request breaks a rule.
    """
    if central.theta is None:
        return refusal_of("NOT_INITIALIZED")
    settled = session.parameter_wire_type
    if request.wire_type not in (0, int(settled), int(settled.of_whole)):
        expected = f"{settled.name}, which Join settled, or nothing"
        raise FaultError(FaultName.WRONG_WIRE_TYPE, expected, f"wire type {request.wire_type}", Place.PARAMETERS)
    if pulled_clock is not None:
        _record_pulled(request, session, central, pulled_clock)
    held = session.snapshot
    if request.HasField("resume_version"):
        if held is None or request.resume_version != held.version:
            return refusal_of("STALE_BASE")
        size = PayloadFormat(central.task.layout, settled.of_whole).byte_count
        if request.resume_offset > min(sent_bytes, size):
            expected = f"a resume_offset within the {sent_bytes} bytes that were sent"
            raise FaultError(FaultName.WRONG_RESUME, expected, f"{request.resume_offset}", Place.PARAMETERS)
        return Pull(call, held, request.resume_offset)
    if request.resume_offset:
        raise FaultError(FaultName.WRONG_RESUME, "resume_version with resume_offset", "none", Place.PARAMETERS)
    known = request.known_version if request.HasField("known_version") else None
    if held is not None and held.is_delivered and known == held.version == central.newest_version:
        return parameters_pb2.NotModified(version=held.version, run_state=central.run_state)
    snapshot = central.snapshot()
    session.record_snapshot(snapshot)
    return Pull(call, snapshot, 0)


def _record_pulled(request: parameters_pb2.PullRequest, session: Session, central: Central, pulled_clock: int) -> None:
    """Make the version that the primary sent the session's snapshot at this shard; the request must name it."""
    held, wanted = session.snapshot, Version(incarnation=central.incarnation, clock=pulled_clock)
    came = request.resume_version
    if held is not None and came == held.version:
        return
    if came != wanted or request.resume_offset or central.clock != pulled_clock:
        raise FaultError(
            FaultName.WRONG_RESUME,
            f"resume_version {describe(wanted)}, which the primary gave, with resume_offset 0",
            f"{describe(came) if request.HasField('resume_version') else 'none'}, {request.resume_offset}",
            Place.SHARDS,
        )
    session.record_snapshot(central.snapshot())
