"""How the kit refuses and breaks calls, and what errors.proto then asks of a worker."""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc

from gem_conformance.faults import FaultName, Place
from gem_conformance.grpc_server import Refusal

__all__ = ["BROKEN", "CANCELLED", "INTERNAL", "UNIMPLEMENTED", "Disturbance", "Forbidden", "disturbance_of"]
__all__ += ["refusal_of"]

_ABORTED, _EXHAUSTED = grpc.StatusCode.ABORTED, grpc.StatusCode.RESOURCE_EXHAUSTED
_INVALID, _PRECONDITION = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION
# The gRPC status codes that errors.proto gives to reasons. All other reasons have FAILED_PRECONDITION.
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
# The reasons that are final in every answer (errors.proto).
_FINAL = {"CREDENTIALS", "ROLE", "INVALID_LAYOUT", "LAYOUT_MISMATCH", "RECIPE", "FEATURE", "VERSION", "NEWER_SESSION"}
# The reasons that errors.proto marks with an asterisk: the worker follows the one rule.
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

# Statuses without ErrorInfo, as gRPC itself reports them after a failure of the network, a proxy or the process.
BROKEN = Refusal(grpc.StatusCode.UNAVAILABLE, message="the conformance kit broke this call")
CANCELLED = Refusal(grpc.StatusCode.CANCELLED)
INTERNAL = Refusal(grpc.StatusCode.INTERNAL)
UNIMPLEMENTED = Refusal(grpc.StatusCode.UNIMPLEMENTED)


@dataclass(frozen=True, slots=True)
class Forbidden:
    """Calls that the candidate must not make any more.

    Attributes:
        methods: the names of their methods.
        name: the fault that the first of them is.
        expected: what a correct worker does instead.
        place: the file that has the rule.
    """

    methods: frozenset[str]
    name: FaultName
    expected: str
    place: Place


@dataclass(slots=True)
class Disturbance:
    """A failure or another event that the kit caused, to which the candidate must react.

    It lasts until the kit has replied to a later commit. Faults quote it, to explain why they expect what they do.

    Attributes:
        action: what the kit did, as a continuation of "the kit had", such as "refused Join with TOO_MANY".
        expected: what a correct worker does next.
        place: the file that has the rule.
        calls_since: the calls that came since then. Equal calls in a row are recorded once.
    """

    action: str
    expected: str = _THE_RULE
    place: Place = Place.RULE
    calls_since: list[str] = field(default_factory=list)

    def record(self, call: str) -> None:
        """Append a call to `calls_since`, unless the last one there is equal."""
        if self.calls_since[-1:] != [call]:
            self.calls_since.append(call)

    def record_refusal(self, call: str, reason: str) -> None:
        """Replace the record of the newest call by one which says that it was refused."""
        if self.calls_since[-1:] == [call]:
            self.calls_since.pop()
        self.record(f"{call} (refused with {reason})")

    def __str__(self) -> str:
        since = f"; since then: {', '.join(self.calls_since)}" if self.calls_since else ""
        return f"the kit had {self.action}{since}"


def refusal_of(reason: str, retry_after: float | None = None, *, final: bool | None = None, **metadata: str) -> Refusal:
    """Return a refusal with the status code and the finality that errors.proto gives to its reason.

    Args:
        reason: the name of an ErrorReason. It may be unknown, because new reasons may be added at any time.
        retry_after: the delay of RetryInfo in seconds; None for a refusal without RetryInfo.
        final: overrides whether the refusal is final; for reasons that errors.proto does not have.
        metadata: further metadata of ErrorInfo.
    """
    return Refusal(
        _CODES.get(reason, _PRECONDITION),
        reason,
        retry_after,
        reason in _FINAL if final is None else final,
        metadata,
        f"{reason}: the conformance kit plays this refusal",
    )


def disturbance_of(what: str, refusal: Refusal) -> Disturbance:
    """Return the disturbance that a refused or broken call is, with the reaction that errors.proto asks for.

    Args:
        what: a name of the call or commit for messages, such as "Join" or "commit 3".
        refusal: how the call was ended.
    """
    action = f"refused {what} with {refusal.reason}" if refusal.reason else f"ended {what} with {refusal.code.name}"
    if refusal.is_final:
        return Disturbance(action, "the end of the process with status 2", Place.ERRORS)
    if refusal.retry_after is not None:
        action += f" and a RetryInfo of {refusal.retry_after:g} s"
        return Disturbance(action, f"no call before that, then: {_THE_RULE}", Place.ERRORS)
    if refusal.reason == "RUN_FINISHED":
        return Disturbance(action, "Leave, and the end of the process with status 0", Place.ERRORS)
    if refusal.reason in _RULE or refusal in (BROKEN, CANCELLED, INTERNAL):
        return Disturbance(action)
    return Disturbance(action, "the end of the process, with a status other than 0, 2 and 3", Place.ERRORS)
