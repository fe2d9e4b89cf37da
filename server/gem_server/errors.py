"""Why the server refuses a call: plain exceptions, which say whose fault it is and whether to try again.

Nothing here knows gRPC; `service/status_codes.py` is the one table that turns these into status.
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

_NOTHING: Mapping[str, str] = MappingProxyType({})


class Fault(Enum):
    """Who has to do something about it."""

    CALLER = "the caller sent something wrong: sending it again won't help"
    SITUATION = "nobody: legal, but not now or not here; the message says what to do"
    SERVER = "the server"


class Reason(Enum):
    """The reasons of `gemps.v1.ErrorReason`, by the same names, each with whose fault it is."""

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
    SUPERSEDED = Fault.SITUATION, 23
    STARTING = Fault.SITUATION, 24
    DRAINING = Fault.SITUATION, 25
    CREDENTIALS = Fault.CALLER, 26
    ROLE = Fault.CALLER, 27
    INTERNAL = Fault.SERVER, 28
    NOT_OFFERED = Fault.CALLER, 29
    NO_SHARED_MEMORY = Fault.SITUATION, 30

    @property
    def fault(self) -> Fault:
        """Whose fault it is."""
        return self.value[0]


class Refusal(Exception):  # noqa: N818 - a refusal is an answer, not an error of this program
    """A call is refused, and nothing was changed.

    `retry_after` in seconds: the identical call may succeed then. None: do not retry as it is.
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

    def again(self) -> "Refusal":
        """A fresh copy to raise: an exception that was raised keeps its traceback, and every frame in it, alive."""
        return Refusal(self.reason, self.message, retry_after=self.retry_after, metadata=self.metadata)


class StartupError(Exception):
    """The server cannot start as it was asked to; the message is one line that names the fix."""
