"""gRPC's status in, this package's exceptions out: the one place that reads codes and `grpc-status-details-bin`."""

import grpc
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from gem_worker.client.errors import NotInitialized, ServerRefused, Superseded, Torn

ERROR_DOMAIN = "gemps"
_DETAILS_KEY = "grpc-status-details-bin"

# What gRPC itself reports when a connection or a call breaks. INTERNAL is how it reports a stream reset by something
# between client and server; an INTERNAL of the server's own carries an ErrorInfo.
_TRANSPORT_CODES = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.INTERNAL,
    }
)
# Refusals that are a phase of the server's life: the call is repeated like one that did not reach it.
_PASSING_REASONS = frozenset({"STARTING", "DRAINING"})
_OWN_CLASS: dict[str, type[ServerRefused]] = {"SUPERSEDED": Superseded, "NOT_INITIALIZED": NotInitialized}
_FIX: dict[str, str] = {
    "SUPERSEDED": "another process joined under this worker's name; give every worker a name of its own",
    "NOT_INITIALIZED": "the server has no parameters; initialize() with the model's, or start the server with --resume",
}


def failure(error: grpc.RpcError) -> Torn | ServerRefused:
    """What a failed call means: Torn when it may be repeated or resumed at once, else the server's refusal."""
    code = error.code()
    message = error.details() or code.name
    info, retry_after = _details(error)
    if info is None:
        if code in _TRANSPORT_CODES:
            return Torn(f"{code.name}: {message}")
        if code is grpc.StatusCode.UNIMPLEMENTED:
            message = f"what answers there does not offer this call of gemps.v1; is it a gemps server? {message}"
        return ServerRefused(code.name, message)
    if info.reason in _PASSING_REASONS:
        return Torn(f"{info.reason}: {message}")
    if info.reason in _FIX:
        message = f"{message}: {_FIX[info.reason]}"
    kind = _OWN_CLASS.get(info.reason, ServerRefused)
    return kind(info.reason, message, retry_after=retry_after, metadata=dict(info.metadata))


def _details(error: grpc.RpcError) -> tuple[ErrorInfo | None, float | None]:
    """The ErrorInfo of our domain and RetryInfo's delay in seconds, where the status carries them."""
    info: ErrorInfo | None = None
    retry_after: float | None = None
    for entry in error.trailing_metadata() or ():
        if entry.key != _DETAILS_KEY:
            continue
        for detail in Status.FromString(entry.value).details:
            if detail.Is(ErrorInfo.DESCRIPTOR):
                found = ErrorInfo.FromString(detail.value)
                info = found if found.domain == ERROR_DOMAIN else info
            elif detail.Is(RetryInfo.DESCRIPTOR):
                delay = RetryInfo.FromString(detail.value).retry_delay
                retry_after = delay.seconds + delay.nanos * 1e-9
    return info, retry_after
