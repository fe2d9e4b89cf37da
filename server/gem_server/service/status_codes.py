"""Maps errors to gRPC statuses."""

import asyncio
import logging
from typing import TYPE_CHECKING, NoReturn

import grpc
from gemps.framing import FramingError
from google.protobuf import duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc.aio import ServicerContext

from gem_core.errors import (
    BadValueError,
    ChecksumError,
    ChunkError,
    CoreError,
    LayoutError,
    RecipeError,
    SelectionError,
    SizeMismatchError,
    WireTypeError,
)
from gem_server.errors import FINAL, Reason, RefusedError
from gem_server.service.disconnect import disconnect

if TYPE_CHECKING:
    from gem_server.service.lane_connection import LaneConnection

DOMAIN = "gemps"
DETAILS_KEY = "grpc-status-details-bin"
# A message is sent twice, and some clients cannot read trailers over 8 KiB.
MAX_MESSAGE_BYTES = 1024
MAX_METADATA_BYTES = 512
CHECKSUM_RETRY_SECONDS = 0.1
# Time-out of sending a status, which waits behind messages that the peer does not read.
STATUS_SECONDS = 20.0

CODES: dict[Reason, grpc.StatusCode] = {
    Reason.MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.OUT_OF_ORDER: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.BAD_CHUNK: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.SIZE_MISMATCH: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.WIRE_TYPE: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.BAD_VALUE: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.INVALID_LAYOUT: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.CHECKSUM: grpc.StatusCode.DATA_LOSS,
    Reason.LAYOUT_MISMATCH: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.UNKNOWN_SESSION: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.EXPIRED_SESSION: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.UNKNOWN_INCARNATION: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.STALE_BASE: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.SEQUENCE_GAP: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.RUN_FINISHED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.NOT_INITIALIZED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.SEQUENCE_REUSED: grpc.StatusCode.ALREADY_EXISTS,
    Reason.MEMORY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.WAITING_ROOM: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.TOO_MANY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.STORAGE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.STALLED: grpc.StatusCode.ABORTED,
    Reason.NEWER_SESSION: grpc.StatusCode.ABORTED,
    Reason.NEWER_CALL: grpc.StatusCode.ABORTED,
    Reason.STARTING: grpc.StatusCode.UNAVAILABLE,
    Reason.DRAINING: grpc.StatusCode.UNAVAILABLE,
    Reason.CREDENTIALS: grpc.StatusCode.UNAUTHENTICATED,
    Reason.ROLE: grpc.StatusCode.PERMISSION_DENIED,
    Reason.INTERNAL: grpc.StatusCode.INTERNAL,
    Reason.NOT_OFFERED: grpc.StatusCode.UNIMPLEMENTED,
    Reason.NO_SHARED_MEMORY: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.FEATURE: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.RECIPE: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.VERSION: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.RUN: grpc.StatusCode.FAILED_PRECONDITION,
}

_CORE_REASONS: dict[type[Exception], Reason] = {
    ChunkError: Reason.BAD_CHUNK,
    SizeMismatchError: Reason.SIZE_MISMATCH,
    BadValueError: Reason.BAD_VALUE,
    ChecksumError: Reason.CHECKSUM,
    LayoutError: Reason.INVALID_LAYOUT,
    WireTypeError: Reason.WIRE_TYPE,
    FramingError: Reason.MALFORMED,
    SelectionError: Reason.MALFORMED,
    RecipeError: Reason.MALFORMED,
}

logger = logging.getLogger(__name__)


def as_refusal(error: Exception) -> RefusedError:
    """Convert an error to a refusal. An error that is a bug becomes INTERNAL, without details."""
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, CoreError | FramingError):
        reason = _CORE_REASONS[type(error)]
        retry = CHECKSUM_RETRY_SECONDS if reason is Reason.CHECKSUM else None
        return RefusedError(reason, str(error), retry_after=retry)
    return RefusedError(Reason.INTERNAL, "an error in the server; its log has the particulars. Report it, please")


async def abort(context: "ServicerContext[bytes, bytes] | LaneConnection", refusal: RefusedError) -> NoReturn:
    """End the call with the refusal. Always raises: the transport's error, or CancelledError after a disconnection."""
    code = CODES[refusal.reason]
    message = _shorten(refusal.message, MAX_MESSAGE_BYTES)
    status = status_pb2.Status(code=code_pb2.Code.Value(code.name), message=message)
    info = error_details_pb2.ErrorInfo(reason=refusal.reason.name, domain=DOMAIN)
    for key, value in refusal.metadata.items():
        info.metadata[key] = _shorten(value, MAX_METADATA_BYTES)
    if refusal.reason in FINAL:
        info.metadata["final"] = "true"
    status.details.add().Pack(info)
    if refusal.retry_after is not None:
        delay = duration_pb2.Duration()
        delay.FromMicroseconds(int(refusal.retry_after * 1e6))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    try:
        async with asyncio.timeout(STATUS_SECONDS):
            await context.abort(code, message, ((DETAILS_KEY, status.SerializeToString()),))
    except TimeoutError:
        disconnect(context.peer())
    except grpc.aio.InternalError:
        pass  # grpc.aio (1.85.1) would log a traceback
    raise asyncio.CancelledError


def _shorten(text: str, limit: int) -> str:
    encoded = text.encode("utf-8", "replace")
    return text if len(encoded) <= limit else encoded[: limit - 3].decode("utf-8", "ignore") + "..."
