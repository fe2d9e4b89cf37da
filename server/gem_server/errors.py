"""Reasons to refuse a call; `service/status_codes.py` maps them to gRPC."""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

_NOTHING: Mapping[str, str] = MappingProxyType({})


class Fault(Enum):
    """Who must act."""

    CALLER = "the caller sent something wrong: sending it again won't help"
    SITUATION = "neither: legal, but not now or not here; the message says what to do"
    SERVER = "the server"


class Reason(Enum):
    """The members of `gemps.v1.ErrorReason`."""

    MALFORMED = Fault.CALLER, 1
    OUT_OF_ORDER = Fault.CALLER, 2
    BAD_CHUNK = Fault.CALLER, 3
    SIZE_MISMATCH = Fault.CALLER, 4
    WIRE_TYPE = Fault.CALLER, 5
    BAD_VALUE = Fault.CALLER, 6
    INVALID_LAYOUT = Fault.CALLER, 7
    CHECKSUM = Fault.SITUATION, 8
    LAYOUT_MISMATCH = Fault.CALLER, 9
    UNKNOWN_SESSION = Fault.SITUATION, 10
    EXPIRED_SESSION = Fault.SITUATION, 11
    UNKNOWN_INCARNATION = Fault.SITUATION, 12
    STALE_BASE = Fault.SITUATION, 13
    SEQUENCE_GAP = Fault.CALLER, 14
    RUN_FINISHED = Fault.SITUATION, 15
    NOT_INITIALIZED = Fault.SITUATION, 16
    SEQUENCE_REUSED = Fault.CALLER, 17
    MEMORY = Fault.SITUATION, 18
    WAITING_ROOM = Fault.SITUATION, 19
    TOO_MANY = Fault.SITUATION, 20
    STORAGE_FULL = Fault.SERVER, 21
    STALLED = Fault.CALLER, 22
    NEWER_SESSION = Fault.SITUATION, 23
    STARTING = Fault.SITUATION, 24
    DRAINING = Fault.SITUATION, 25
    CREDENTIALS = Fault.CALLER, 26
    ROLE = Fault.CALLER, 27
    INTERNAL = Fault.SERVER, 28
    NOT_OFFERED = Fault.CALLER, 29
    NO_SHARED_MEMORY = Fault.SITUATION, 30
    FEATURE = Fault.CALLER, 31
    RECIPE = Fault.CALLER, 32
    NEWER_CALL = Fault.SITUATION, 33
    VERSION = Fault.CALLER, 34
    RUN = Fault.CALLER, 35

    @property
    def fault(self) -> Fault:
        """Who must act."""
        return self.value[0]


# Refusals that neither waiting nor a restart of this worker helps (errors.proto).
FINAL = frozenset(
    {
        Reason.CREDENTIALS,
        Reason.ROLE,
        Reason.INVALID_LAYOUT,
        Reason.LAYOUT_MISMATCH,
        Reason.RECIPE,
        Reason.FEATURE,
        Reason.VERSION,
        Reason.RUN,
        Reason.NEWER_SESSION,
    }
)


class RefusedError(Exception):
    """A call was refused and changed nothing.

    `retry_after` is the number of seconds after which the identical call may succeed, or None if it never will.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        retry_after: float | None = None,
        metadata: Mapping[str, str] = _NOTHING,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.metadata = metadata

    def again(self) -> "RefusedError":
        """Return a copy to raise, because the traceback of an error that was raised keeps its frames alive."""
        return RefusedError(self.reason, self.message, retry_after=self.retry_after, metadata=self.metadata)


class StartupError(Exception):
    """The server cannot start. The message is one line that says what to do."""
