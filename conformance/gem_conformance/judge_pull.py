"""Judges a Pull, and decides how a correct server answers it."""

from __future__ import annotations

from dataclasses import dataclass

from gemps.v1 import parameters_pb2
from gemps.v1.transfer_pb2 import Version

from gem_conformance.faults import FaultError, FaultName, Place
from gem_conformance.refusals import refusal
from gem_conformance.state import Central, Session, Snapshot, text_of
from gem_conformance.wire import Call, Refusal
from gem_core.payload import PayloadFormat

__all__ = ["Pull", "judge_pull"]


@dataclass(slots=True)
class Pull:
    """A pull to be answered with `snapshot`, from byte `offset` of its payload on."""

    call: Call
    request: parameters_pb2.PullRequest
    snapshot: Snapshot
    offset: int


def judge_pull(
    call: Call,
    request: parameters_pb2.PullRequest,
    session: Session,
    central: Central,
    sent: int,
    pulled: int | None = None,
) -> Pull | Refusal | parameters_pb2.NotModified:
    """Decide about a pull of a known session. A pull from the start replaces the session's snapshot.

    Args:
        call: its call.
        request: what came.
        session: the candidate's.
        central: what the server holds.
        sent: bytes of the snapshot's payload that were sent, which a pull may continue.
        pulled: at a secondary shard, the clock that the primary gave.

    Raises:
        FaultError: the request breaks a rule.
    """
    if central.theta is None:
        return refusal("NOT_INITIALIZED")
    settled = session.parameter_wire_type
    if request.wire_type not in (0, int(settled), int(settled.of_whole)):
        expected = f"{settled.name}, which Join settled, or nothing"
        raise FaultError(FaultName.WRONG_WIRE_TYPE, expected, f"wire type {request.wire_type}", Place.PARAMETERS)
    if pulled is not None:
        _hold_pulled(request, session, central, pulled)
    held = session.snapshot
    if request.HasField("resume_version"):
        if held is None or request.resume_version != held.version:
            return refusal("STALE_BASE")
        size = PayloadFormat(central.task.layout, settled.of_whole).byte_count
        if request.resume_offset > min(sent, size):
            expected = f"a resume_offset within the {sent} bytes that were sent"
            raise FaultError(FaultName.WRONG_RESUME, expected, f"{request.resume_offset}", Place.PARAMETERS)
        return Pull(call, request, held, request.resume_offset)
    if request.resume_offset:
        raise FaultError(FaultName.WRONG_RESUME, "resume_version with resume_offset", "none", Place.PARAMETERS)
    known = request.known_version if request.HasField("known_version") else None
    if held is not None and held.is_delivered and known == held.version == central.newest_version:
        return parameters_pb2.NotModified(version=held.version, run_state=central.run_state)
    snapshot = central.snapshot()
    session.hold(snapshot)
    return Pull(call, request, snapshot, 0)


def _hold_pulled(request: parameters_pb2.PullRequest, session: Session, central: Central, pulled: int) -> None:
    """Hold the version that the primary gave, if the request names it."""
    held, wanted = session.snapshot, Version(incarnation=central.incarnation, clock=pulled)
    came = request.resume_version
    if held is not None and came == held.version:
        return
    if came != wanted or request.resume_offset or central.clock != pulled:
        raise FaultError(
            FaultName.WRONG_RESUME,
            f"resume_version {text_of(wanted)}, which the primary gave, with resume_offset 0",
            f"{text_of(came) if request.HasField('resume_version') else 'none'}, {request.resume_offset}",
            Place.SHARDS,
        )
    session.hold(central.snapshot())
