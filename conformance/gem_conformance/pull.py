"""Judges a Pull."""

from __future__ import annotations

from dataclasses import dataclass

from gemps.v1 import parameters_pb2

from gem_conformance.central import Central, Clock, Session, Snapshot
from gem_conformance.faults import FaultError, FaultName, Place
from gem_conformance.talk import refusal
from gem_conformance.wire import Call, Refusal

__all__ = ["Pull", "judge_pull"]


@dataclass(slots=True)
class Pull:
    """Judged pull."""

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
    """Decide the response; a pull from the start replaces the session's snapshot.

    `sent`: resumable bytes. `pulled`: at a secondary, the primary's clock. Raises FaultError.
    """
    if central.theta is None:
        return refusal("NOT_INITIALIZED")
    settled = session.parameter_wire_type
    if request.wire_type not in (0, int(settled), int(settled.of_whole)):
        raise FaultError(
            FaultName.WRONG_WIRE_TYPE,
            f"{settled.name}, which Join settled, or nothing",
            f"a pull of wire type {request.wire_type}",
            Place.PULL,
        )
    if pulled is not None:
        _hold_pulled(request, session, central, pulled)
    held = session.snapshot
    if request.HasField("resume_version"):
        if held is None or Clock.from_wire(request.resume_version) != held.version:
            return refusal("STALE_BASE")
        _judge_offset(request, sent)
        return Pull(call, request, held, request.resume_offset)
    if request.resume_offset:
        raise FaultError(FaultName.WRONG_RESUME, "resume_version with resume_offset", "none", Place.PULL)
    known = Clock.from_wire(request.known_version) if request.HasField("known_version") else None
    if held is not None and held.is_delivered and known == held.version == central.newest_version:
        return parameters_pb2.NotModified(version=held.version.to_wire(), run_state=central.run_state)
    snapshot = central.snapshot()
    session.hold(snapshot)
    return Pull(call, request, snapshot, 0)


def _hold_pulled(request: parameters_pb2.PullRequest, session: Session, central: Central, pulled: int) -> None:
    """Hold the version that the primary gave, if the request names it."""
    held, wanted = session.snapshot, Clock(central.incarnation, pulled)
    came = Clock.from_wire(request.resume_version)
    if held is not None and came == held.version:
        return
    if came != wanted or request.resume_offset or central.clock != pulled:
        raise FaultError(
            FaultName.WRONG_RESUME,
            f"resume_version {wanted}, which the primary gave, with resume_offset 0",
            f"{came if request.HasField('resume_version') else 'none'}, {request.resume_offset}",
            Place.PULL,
        )
    session.hold(central.snapshot())


def _judge_offset(request: parameters_pb2.PullRequest, sent: int) -> None:
    if request.resume_offset > sent:
        raise FaultError(
            FaultName.WRONG_RESUME,
            f"a resume_offset within the {sent} bytes that were sent",
            f"{request.resume_offset}",
            Place.PULL,
        )
