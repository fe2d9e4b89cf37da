"""How the kit ends calls, and what errors.proto asks of a worker then."""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc

from gem_conformance.faults import FaultName, Place
from gem_conformance.wire import Refusal

__all__ = ["CANCELLED", "INTERNAL", "TORN", "UNIMPLEMENTED", "Forbidden", "Trouble", "refusal", "refused"]

_ABORTED, _EXHAUSTED = grpc.StatusCode.ABORTED, grpc.StatusCode.RESOURCE_EXHAUSTED
_INVALID, _PRECONDITION = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION
# From errors.proto; FAILED_PRECONDITION where nothing is said.
_CODES = {
    "WAITING_ROOM": _EXHAUSTED,
    "TOO_MANY": _EXHAUSTED,
    "STALLED": _ABORTED,
    "NEWER_SESSION": _ABORTED,
    "NEWER_CALL": _ABORTED,
    "DRAINING": grpc.StatusCode.UNAVAILABLE,
    "SIZE_MISMATCH": _INVALID,
    "BAD_VALUE": _INVALID,
    "CHECKSUM": grpc.StatusCode.DATA_LOSS,
    "INTERNAL": grpc.StatusCode.INTERNAL,
    "NOT_OFFERED": grpc.StatusCode.UNIMPLEMENTED,
    "CREDENTIALS": grpc.StatusCode.UNAUTHENTICATED,
}
# Those of errors.proto that are final whoever says them.
_FINAL = {"CREDENTIALS", "ROLE", "INVALID_LAYOUT", "LAYOUT_MISMATCH", "RECIPE", "FEATURE", "VERSION", "NEWER_SESSION"}
# Those marked with an asterisk there.
_RULE = {
    "BAD_VALUE",
    "CHECKSUM",
    "UNKNOWN_SESSION",
    "EXPIRED_SESSION",
    "UNKNOWN_INCARNATION",
    "STALE_BASE",
    "SEQUENCE_GAP",
    "NOT_INITIALIZED",
    "NEWER_CALL",
    "STARTING",
    "DRAINING",
}
_THE_RULE = "Join with the same session id, Pull, and a new delta with the sequence last_applied_sequence + 1"

# Ends without ErrorInfo, as gRPC and networks make them.
TORN = Refusal(grpc.StatusCode.UNAVAILABLE, message="the conformance kit broke this call")
CANCELLED = Refusal(grpc.StatusCode.CANCELLED)
INTERNAL = Refusal(grpc.StatusCode.INTERNAL)
UNIMPLEMENTED = Refusal(grpc.StatusCode.UNIMPLEMENTED)


@dataclass(frozen=True, slots=True)
class Forbidden:
    """Calls that are a fault from now on, with the fault's name."""

    methods: frozenset[str]
    name: FaultName
    expected: str
    place: Place


@dataclass(slots=True)
class Trouble:
    """A disturbance that the kit has made, until the next reply to a commit.

    `done` continues "the kit had"; `since`: the calls that came behind it.
    """

    done: str
    expected: str = _THE_RULE
    place: Place = Place.RULE
    since: list[str] = field(default_factory=list)

    def record(self, call: str) -> None:
        """Record a call; a row of equal ones counts once."""
        if self.since[-1:] != [call]:
            self.since.append(call)

    def record_refusal(self, call: str, reason: str) -> None:
        """Record that the newest call was refused."""
        if self.since[-1:] == [call]:
            self.since.pop()
        self.record(f"{call} (refused with {reason})")

    def __str__(self) -> str:
        since = f"; since then: {', '.join(self.since)}" if self.since else ""
        return f"the kit had {self.done}{since}"


def refusal(reason: str, retry_after: float | None = None, *, final: bool | None = None, **metadata: str) -> Refusal:
    """Return the refusal with this reason. `final`: of a reason that errors.proto does not name."""
    return Refusal(
        _CODES.get(reason, _PRECONDITION),
        reason,
        retry_after,
        reason in _FINAL if final is None else final,
        metadata,
        f"{reason}: the conformance kit plays this refusal",
    )


def refused(what: str, refusal: Refusal) -> Trouble:
    """Return the trouble of a call that was refused or broken."""
    done = f"refused {what} with {refusal.reason}" if refusal.reason else f"ended {what} with {refusal.code.name}"
    if refusal.is_final:
        return Trouble(done, "the end of the process with status 2", Place.ERRORS)
    if refusal.retry_after is not None:
        done += f" and a RetryInfo of {refusal.retry_after:g} s"
        return Trouble(done, f"no call before that, then: {_THE_RULE}", Place.ERRORS)
    if refusal.reason == "RUN_FINISHED":
        return Trouble(done, "Leave, and the end of the process with status 0", Place.ERRORS)
    if refusal.reason in _RULE or refusal in (TORN, CANCELLED, INTERNAL):
        return Trouble(done)
    return Trouble(done, "the end of the process, with a status other than 0, 2 and 3", Place.ERRORS)
