"""What every refusal must look like: status by reason, ErrorInfo, RetryInfo, size, a message that names the fix."""

import asyncio
import re
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

import grpc
from gemps.v1 import errors_pb2
from google.rpc import error_details_pb2, status_pb2

DOMAIN = "gemps"
DETAILS_LIMIT = 4096
# A guard against a server that never answers, far above anything a loaded machine needs.
PATIENCE = 20.0

# errors.proto, its group comments.
STATUS_OF_REASON = {
    grpc.StatusCode.INVALID_ARGUMENT: {
        "MALFORMED",
        "OUT_OF_ORDER",
        "BAD_CHUNK",
        "SIZE_MISMATCH",
        "WIRE_TYPE",
        "BAD_VALUE",
        "INVALID_LAYOUT",
    },
    grpc.StatusCode.DATA_LOSS: {"CHECKSUM"},
    grpc.StatusCode.FAILED_PRECONDITION: {
        "LAYOUT_MISMATCH",
        "UNKNOWN_SESSION",
        "EXPIRED_SESSION",
        "UNKNOWN_INCARNATION",
        "STALE_BASE",
        "SEQUENCE_GAP",
        "RUN_FINISHED",
        "NOT_INITIALIZED",
        "NO_SHARED_MEMORY",
        "FEATURE",
        "RECIPE",
        "VERSION",
    },
    grpc.StatusCode.ALREADY_EXISTS: {"SEQUENCE_REUSED"},
    grpc.StatusCode.RESOURCE_EXHAUSTED: {"MEMORY", "WAITING_ROOM", "TOO_MANY", "STORAGE_FULL"},
    grpc.StatusCode.ABORTED: {"STALLED", "NEWER_CALL", "NEWER_SESSION"},
    grpc.StatusCode.UNAVAILABLE: {"STARTING", "DRAINING"},
    grpc.StatusCode.UNAUTHENTICATED: {"CREDENTIALS"},
    grpc.StatusCode.PERMISSION_DENIED: {"ROLE"},
    grpc.StatusCode.INTERNAL: {"INTERNAL"},
    grpc.StatusCode.UNIMPLEMENTED: {"NOT_OFFERED"},
}
# errors.proto: metadata has final = "true".
FINAL = {
    "CREDENTIALS",
    "ROLE",
    "INVALID_LAYOUT",
    "LAYOUT_MISMATCH",
    "RECIPE",
    "FEATURE",
    "VERSION",
    "NEWER_SESSION",
}
# Trying again can only help where the obstacle goes away by itself (docs/design.md, section 3, status codes).
ALWAYS_WITH_RETRY = {"WAITING_ROOM", "STALLED"}
SOMETIMES_WITH_RETRY = {"CHECKSUM", "MEMORY", "TOO_MANY", "STORAGE_FULL", "STARTING", "DRAINING", "NOT_INITIALIZED"}

# A message names the fix when it tells the caller to do something.
_FIX = re.compile(
    r"\b(send|pull|join|wait|retry|use|make|set|start|choose|draw|give|keep|drop|leave|call|check|cut|split|lower|raise"
    r"|rename|remove|offer|reduce|repeat|name|put|list|count|resend|open|initialize|ask|compute|try|end|finish|skip|let"
    r"|add|free|go|stop|clip|read|update|shorten|continue|begin|close|load|resume|reconnect|declare|fill|encode|report|must|needs|reshape)\b",
    re.IGNORECASE,
)
_INTERNALS = re.compile(r"Traceback|File \"|\.py\b|\bobject at 0x|Exception\b|/home/|/usr/")


@dataclass(frozen=True)
class Refusal:
    code: grpc.StatusCode
    reason: str
    message: str
    metadata: dict[str, str]
    retry_after: float | None


def details_of(error: grpc.aio.AioRpcError) -> bytes:
    found = [value for key, value in error.trailing_metadata() or () if key == "grpc-status-details-bin"]
    assert len(found) == 1, f"{error.code()} without grpc-status-details-bin: {error.details()}"
    return bytes(found[0])


def read_refusal(error: grpc.aio.AioRpcError) -> Refusal:
    """The refusal in an error status; asserts everything that holds for all of them."""
    details = details_of(error)
    assert len(details) < DETAILS_LIMIT
    status = status_pb2.Status.FromString(details)
    assert status.code == error.code().value[0]
    assert status.message == error.details()
    infos, retries = [], []
    for any_message in status.details:
        if any_message.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            infos.append(error_details_pb2.ErrorInfo.FromString(any_message.value))
        if any_message.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            retries.append(error_details_pb2.RetryInfo.FromString(any_message.value))
    assert len(infos) == 1
    assert len(retries) <= 1
    reason = infos[0].reason
    assert infos[0].domain == DOMAIN
    assert f"ERROR_REASON_{reason}" in errors_pb2.ErrorReason.keys()  # noqa: SIM118 (an enum wrapper is no mapping)
    assert reason in STATUS_OF_REASON[error.code()], f"{reason} came as {error.code()}"
    assert infos[0].metadata.get("final") == ("true" if reason in FINAL else None)
    message = error.details() or ""
    assert _FIX.search(message), f"the message names no fix: {message!r}"
    assert not _INTERNALS.search(message), f"the message shows internals: {message!r}"
    delay = retries[0].retry_delay.ToTimedelta().total_seconds() if retries else None
    if reason in ALWAYS_WITH_RETRY:
        assert delay is not None, f"{reason} without RetryInfo"
    elif reason not in SOMETIMES_WITH_RETRY:
        assert delay is None, f"{reason} with RetryInfo: retrying cannot help"
    if delay is not None:
        assert 0 < delay <= 60
    return Refusal(error.code(), reason, message, dict(infos[0].metadata), delay)


async def answered_or_refused(call: Awaitable[Any], *reasons: str) -> Any:
    """The call's answer, or its Refusal for one of the reasons, where timing or the contract leaves both open."""
    try:
        return await asyncio.wait_for(call, PATIENCE)
    except grpc.aio.AioRpcError as error:
        refusal = read_refusal(error)
    assert refusal.reason in reasons, f"{refusal.reason} ({refusal.message}) instead of {reasons}"
    return refusal


async def refused(call: Awaitable[Any], *reasons: str) -> Refusal:
    """Awaits a call that must be refused for one of the reasons (more than one where the contract leaves a choice)."""
    answer = await answered_or_refused(call, *reasons)
    assert isinstance(answer, Refusal), f"not refused: {answer!r}"[:400]
    return answer
