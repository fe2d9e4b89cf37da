"""Faults of a candidate. A fault says what was expected, what came instead, and which file has the rule."""

from dataclasses import dataclass
from enum import Enum

__all__ = ["FaultError", "FaultName", "Place"]


class Place(Enum):
    """The file that has a rule: a proto, whose comments are the text of the contract, or the page about the kit."""

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
    """The kinds of faults. Programs may compare the names, which stay; the values are explanations for people."""

    SILENT = "it sent nothing within the time limit"
    STOPPED = "its process ended in the middle of a scenario"
    WRONG_EXIT = "its process ended with a wrong exit status"
    LEFT_EARLY = "it called Leave before the run was finished"
    NO_LEAVE = "its process ended without calling Leave"
    WRONG_LEAVE_REASON = "the reason in its Leave is not why it left"
    NOT_ENDED = "its process did not end"
    IGNORED_SIGTERM = "it continued to train after SIGTERM"
    UNEXPECTED_CALL = "it made a call that a worker must not make at this point"
    NO_PROGRESS = "it repeated the same calls without committing"
    MALFORMED = "it sent a message that the contract does not allow"
    TOO_LARGE = "it sent a message above the size limit"
    WRONG_JOIN = "a field of its Join is illegal"
    WRONG_SESSION = "it used another session id than in its Join"
    REPEATED_SESSION_ID = "it used the session id of an earlier process"
    WRONG_LAYOUT = "it joined with another layout than the task's"
    WRONG_OFFER = "it offered other wire types than the task's"
    OUT_OF_ORDER = "it sent the parts of an exchange in an illegal order"
    DATA_BEFORE_PROCEED = "it sent data before the server's proceed"
    IGNORED_EARLY_PROCEED = "it waited for a proceed that had come with the previous reply"
    WRONG_SIZE = "it sent a payload of the wrong size"
    WRONG_CHUNK = "it sent an empty, too long or surplus chunk"
    NO_FOOTER = "it sent a payload without a footer"
    WRONG_CHECKSUM = "it sent a wrong CRC32C"
    WRONG_WIRE_TYPE = "it used another wire type than Join settled"
    WRONG_VALUES = "it sent wrong values of PARAMETERs"
    WRONG_LEFT_OUT = "it did not add the rest that lossy deltas left out to the next delta"
    WRONG_BUFFERS = "it sent wrong bytes of a BUFFER"
    TRUNCATING_BFLOAT16 = "it truncated to bfloat16 instead of rounding half to even"
    WRONG_DIGEST = "it trained on parameters of another layout"
    WRONG_RESUME = "it resumed a pull at a version or offset that the server did not send"
    UNFINISHED_PARAMETERS = "it trained on parameters that were incomplete or damaged"
    WRONG_SEQUENCE = "it used a wrong sequence number"
    STALE_BASE = "its base version is not the one that the session holds"
    STALE_DELTA = "it computed a delta from parameters that had been replaced"
    WRONG_COMMIT_ID = "its commit_id breaks the rules for several servers"
    NEW_SEQUENCE_ON_RETRY = "it used a new sequence number for a delta whose outcome was unknown"
    OTHER_BYTES_ON_RETRY = "it repeated a commit with other bytes"
    NO_CHECKSUM_IN_REPEAT = "it repeated a commit without payload_crc32c"
    REPEATED_DELTA = "it repeated a delta that was refused for its values"
    NO_BACK_OFF = "it did not wait longer after each failure"
    IGNORED_RETRY_INFO = "it called again before RetryInfo's delay was over"
    RETRIED_WITHOUT_RETRY_INFO = "it tried again after a refusal that forbids it"
    RETRIED_TOO_OFTEN = "it tried again more often than it may"
    IGNORED_FINAL = "it continued after a final refusal"
    IGNORED_ETA = "it used another learning rate than the server's"
    IGNORED_LOCAL_STEPS = "its delta is not the result of the run's local steps"
    IGNORED_FINISHED = "it continued after the run was finished"
    WRONG_FRAME = "it sent an illegal frame on the lane"


@dataclass
class FaultError(Exception):
    """A violation of the contract, which ends the scenario as failed.

    Attributes:
        name: the kind of fault.
        expected: what a correct worker would have sent or done.
        came: what this worker sent or did.
        place: the file that has the rule.
        after: the last disturbance that the kit caused, and the worker's calls since then. Empty if there was none.
        step: the step of the scenario at which the fault appeared, such as "3 of 6: commit".
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
