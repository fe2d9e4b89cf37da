"""Translates gRPC statuses to the client's exceptions."""

import re
from typing import NamedTuple
from urllib.parse import unquote

import grpc
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from gem_core.visible_text import escape_invisible
from gem_worker.client.errors import NotInitializedError, ServerRefusedError, SupersededError, TornCallError
from gem_worker.client.host import agent

ERROR_DOMAIN = "gemps"
DETAILS_KEY = "grpc-status-details-bin"

# gRPC reports a reset stream as INTERNAL. A server's own status INTERNAL has an ErrorInfo.
_TRANSPORT_CODES = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.INTERNAL,
    }
)
# The call is repeated as if the server had not received it. NEWER_CALL comes when this client gave up an earlier call,
# or when an interrupt ended it.
_PASSING_REASONS = frozenset({"STARTING", "DRAINING", "NEWER_CALL"})
_OWN_CLASS: dict[str, type[ServerRefusedError]] = {
    "NEWER_SESSION": SupersededError,
    "NOT_INITIALIZED": NotInitializedError,
}
_FIX: dict[str, str] = {
    "NEWER_SESSION": "another process joined under this worker's name; give every worker its own name",
    "NOT_INITIALIZED": "the server has no parameters; initialize() with the model's, or start the server with --resume",
}


class _Cause(NamedTuple):
    pattern: re.Pattern[str]
    why: str  # {peer}: address tried; {name}: name looked up; {said}: the pattern's group
    fix: str
    by_stranger: bool = False
    untrusted: bool = False
    wrong_name: bool = False


# The patterns are for the messages of grpcio 1.85.1.
_CAUSES = (
    _Cause(
        re.compile("CERTIFICATE_VERIFY_FAILED: ([^:]+)"),
        "the certificate of {peer} was not accepted ({said})",
        "give the authority that signed it in GEMPS_CLIENT_TLS_CA, and see that it has not expired",
        untrusted=True,
    ),
    _Cause(
        re.compile("Hostname Verification Check failed"),
        "the certificate of {peer} is for other names",
        "connect by one of them, or give it in GEMPS_CLIENT_TLS_SERVER_NAME",
        untrusted=True,
        wrong_name=True,
    ),
    _Cause(
        re.compile("WRONG_VERSION_NUMBER"),
        "what answers at {peer} speaks no TLS",
        "start the server with tls.cert or --credentials, or leave out GEMPS_CLIENT_TLS_CA",
        untrusted=True,
    ),
    _Cause(
        re.compile("Domain name not found"),
        "the name {name} is not known here",
        "check how it is spelt, and that DNS or the hosts file of this machine has it",
    ),
    _Cause(
        re.compile("address lookup failed"),
        "DNS did not say where {name} is",
        "check this machine's network and DNS, or give the server's IP address",
    ),
    _Cause(
        re.compile("Expected SETTINGS frame as the first frame|http1"),
        "what answers at {peer} does not speak gRPC",
        "give the port that gemps serve listens on",
        by_stranger=True,
    ),
    _Cause(
        re.compile("connect to all addresses.*(Socket closed|Connection reset)"),
        "what listens at {peer} hangs up at once",
        "if it uses TLS, give --credentials (GEMPS_CLIENT_CREDENTIALS) with the worker's folder, or "
        "GEMPS_CLIENT_TLS_CA, and GEMPS_CLIENT_TLS_CERT where it asks for client certificates; else check that gemps "
        "serve runs behind that port (a forwarded port without a server does this)",
    ),
    _Cause(
        re.compile("Connection refused"),
        "connection refused by {peer}",
        "check that gemps serve runs there, on this port (on another machine: with --bind 0.0.0.0:PORT --insecure)",
    ),
    _Cause(
        re.compile("No route to host|Network is unreachable"),
        "{peer} cannot be reached from here",
        "check the address, this machine's network, and firewalls on the way",
    ),
    _Cause(
        re.compile("tcp handshaker shutdown|before receiving SETTINGS frame"),
        "{peer} does not answer",
        "check the address and port, and firewalls on the way",
    ),
)


def failure(error: grpc.RpcError) -> TornCallError | ServerRefusedError:
    """Return a TornCallError if the call broke and may be repeated, otherwise the server's refusal."""
    code = error.code()
    message = escape_invisible(error.details() or code.name)
    info, retry_after = _details(error)
    if info is None:
        if code in _TRANSPORT_CODES:
            return _torn(f"{code.name}: {message}")
        if code is grpc.StatusCode.UNIMPLEMENTED:
            message = (
                f"what answers there does not offer this call of gemps.v1: it is a development version of gemps 0.1, "
                f"which spoke a draft, or no gemps server. Start one of this client's version ({agent()}). {message}"
            )
        return ServerRefusedError(code.name, message)
    if info.reason in _PASSING_REASONS:
        return TornCallError(f"{info.reason}: {message}", by_server=True, retry_after=retry_after)
    if info.reason in _FIX:
        message = f"{message}: {_FIX[info.reason]}"
    kind = _OWN_CLASS.get(info.reason, ServerRefusedError)
    return kind(info.reason, message, retry_after=retry_after, metadata=dict(info.metadata))


def _torn(message: str) -> TornCallError:
    found = ((one, one.pattern.search(message)) for one in _CAUSES)
    cause, match = next(((one, match) for one, match in found if match), (None, None))
    if cause is None or match is None:
        return TornCallError(message)
    peer = re.search(r"ipv[46]:([\d.]+:\d+|\[.+?\]:\d+)", unquote(message))
    name = re.search(r"address lookup failed for (\S+?)(:\d+)?:", message)
    said = (match.groups() or ("",))[0]
    why = cause.why.format(peer=peer[1] if peer else "that address", name=name[1] if name else "it", said=said)
    return TornCallError(
        why, fix=cause.fix, by_stranger=cause.by_stranger, untrusted=cause.untrusted, wrong_name=cause.wrong_name
    )


def _details(error: grpc.RpcError) -> tuple[ErrorInfo | None, float | None]:
    info: ErrorInfo | None = None
    retry_after: float | None = None
    for entry in error.trailing_metadata() or ():
        if entry.key != DETAILS_KEY:
            continue
        for detail in Status.FromString(entry.value).details:
            if detail.Is(ErrorInfo.DESCRIPTOR):
                found = ErrorInfo.FromString(detail.value)
                info = found if found.domain == ERROR_DOMAIN else info
            elif detail.Is(RetryInfo.DESCRIPTOR):
                delay = RetryInfo.FromString(detail.value).retry_delay
                retry_after = delay.seconds + delay.nanos * 1e-9
    return info, retry_after
