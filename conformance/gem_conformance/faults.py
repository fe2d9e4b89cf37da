"""Faults of a candidate: a name that programs may compare, what was expected, what came, and where the rule stands."""

from dataclasses import dataclass
from enum import Enum

__all__ = ["FaultError", "FaultName", "Place"]


class Place(Enum):
    """Where a rule stands: a file of the contract, whose comments are its text, or the page about it."""

    SESSION = "proto/gemps/v1/session.proto"
    LAYOUT = "proto/gemps/v1/layout.proto"
    TRANSFER = "proto/gemps/v1/transfer.proto"
    PARAMETERS = "proto/gemps/v1/parameters.proto"
    COMMIT = "proto/gemps/v1/commit.proto"
    RULE = "proto/gemps/v1/worker.proto"
    ERRORS = "proto/gemps/v1/errors.proto"
    RUN = "proto/gemps/v1/run.proto"
    SHARDS = "proto/gemps/v1/shards.proto"
    LANE = "proto/gemps/v1/lane.proto"
    CONFORMANCE = "docs/protocol.md#conformance"


class FaultName(Enum):
    """Stable names, which programs may compare."""

    SILENT = "nothing came"
    STOPPED = "it ended during a scenario"
    WRONG_EXIT = "it ended with a wrong exit status"
    LEFT_EARLY = "it left a run that was not over"
    NO_LEAVE = "it ended without Leave"
    WRONG_LEAVE_REASON = "it left for another reason than it said"
    NOT_ENDED = "it did not end"
    IGNORED_SIGTERM = "it went on after SIGTERM"
    UNEXPECTED_CALL = "it made a call that a worker must not make here"
    NO_PROGRESS = "it made the same calls again and again"
    MALFORMED = "a message that is not one of the contract"
    TOO_LARGE = "a message beyond the limit"
    WRONG_JOIN = "a Join with an illegal field"
    WRONG_SESSION = "another session id than that of Join"
    REPEATED_SESSION_ID = "the session id of an earlier process"
    WRONG_LAYOUT = "another layout than the task's"
    WRONG_OFFER = "other wire types offered than the task's"
    OUT_OF_ORDER = "parts in an illegal order"
    DATA_BEFORE_PROCEED = "data before proceed"
    IGNORED_EARLY_PROCEED = "it waited for a proceed that it had got with the reply before"
    WRONG_SIZE = "a payload of another size"
    WRONG_CHUNK = "an illegal chunk"
    NO_FOOTER = "no footer"
    WRONG_CHECKSUM = "a wrong CRC32C"
    WRONG_WIRE_TYPE = "another wire type than Join settled"
    WRONG_VALUES = "wrong values"
    WRONG_LEFT_OUT = "what lossy deltas left out is not in the next one"
    WRONG_BUFFERS = "wrong bytes of a BUFFER"
    TRUNCATING_BFLOAT16 = "bfloat16 truncated instead of rounded half to even"
    WRONG_DIGEST = "it trained on parameters of another layout"
    WRONG_RESUME = "a pull that continues where it cannot"
    UNFINISHED_PARAMETERS = "it trained on parameters that were not complete"
    WRONG_SEQUENCE = "a wrong sequence"
    STALE_BASE = "a base version that is not the session's"
    STALE_DELTA = "a delta of parameters that were replaced"
    WRONG_COMMIT_ID = "another commit_id than several servers require"
    NEW_SEQUENCE_ON_RETRY = "a new sequence for a delta whose outcome was open"
    OTHER_BYTES_ON_RETRY = "other bytes under the same sequence"
    NO_CHECKSUM_IN_REPEAT = "a repeat without payload_crc32c"
    REPEATED_DELTA = "a delta again that was refused for its values"
    NO_BACK_OFF = "it did not back off"
    IGNORED_RETRY_INFO = "it came back before RetryInfo allowed it"
    RETRIED_WITHOUT_RETRY_INFO = "it repeated what must not be repeated"
    RETRIED_TOO_OFTEN = "it repeated more often than it may"
    IGNORED_FINAL = "it went on after a final refusal"
    IGNORED_ETA = "another learning rate than the server's"
    IGNORED_LOCAL_STEPS = "another delta than the run's local steps make"
    IGNORED_FINISHED = "it went on after the run was finished"
    WRONG_FRAME = "an illegal frame on the lane"


@dataclass
class FaultError(Exception):
    """A violation of the contract.

    Attributes:
        name: which.
        expected: what a correct worker would have sent or done.
        came: what this one did.
        place: where the rule stands.
        after: the last disturbance that the kit had made, and the calls since; empty if there was none.
        step: the scenario's step at which it showed, such as "3 of 6: commit".
    """

    name: FaultName
    expected: str
    came: str
    place: Place
    after: str = ""
    step: str = ""

    def __str__(self) -> str:
        after = f", after {self.after}" if self.after else ""
        return f"{self.name.name}: expected {self.expected}; came {self.came}{after} ({self.place.value})"
