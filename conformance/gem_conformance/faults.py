"""Faults of a candidate, with places in docs/protocol.md."""

from dataclasses import dataclass
from enum import Enum

__all__ = ["FaultError", "FaultName", "Place"]

DOCUMENT = "docs/protocol.md"


class Place(Enum):
    """Headings of docs/protocol.md."""

    CONNECTIONS = "Connections and limits"
    VERSIONS = "Versions"
    SESSIONS = "Sessions"
    LAYOUTS = "Layouts and digests"
    PAYLOADS = "Payloads and wire types"
    CHUNKS = "Chunks, footers and checksums"
    INITIALIZE = "Initialize"
    PULL = "Pull"
    COMMIT = "Commit"
    RETRIES = "Retries and exactly once"
    REFUSALS = "Refusals"
    END = "The end of a run"
    CONFORMANCE = "Conformance"

    @property
    def link(self) -> str:
        """File and anchor, in GitHub's form."""
        kept = "".join(one for one in self.value.lower() if one.isalnum() or one in " -")
        return f"{DOCUMENT}#{kept.replace(' ', '-')}"


class FaultName(Enum):
    """Stable names, which programs may compare."""

    SILENT = "nothing came"
    STOPPED = "it ended during a scenario"
    WRONG_EXIT = "it ended with a wrong exit status"
    LEFT_EARLY = "it left a run that was not over"
    NO_LEAVE = "it ended without Leave"
    NOT_ENDED = "it did not end"
    UNEXPECTED_CALL = "it made a call that a worker must not make here"
    NO_PROGRESS = "it made the same calls again and again"
    MALFORMED = "a message that is not one of the contract"
    TOO_LARGE = "a message beyond the limit"
    WRONG_JOIN = "a Join with an illegal field"
    WRONG_SESSION = "another session id"
    WRONG_LAYOUT = "another layout than the task's"
    WRONG_OFFER = "other wire types offered than the task's"
    OUT_OF_ORDER = "parts in an illegal order"
    DATA_BEFORE_PROCEED = "data before proceed"
    WRONG_SIZE = "a payload of another size"
    WRONG_CHUNK = "an illegal chunk"
    NO_FOOTER = "no footer"
    WRONG_CHECKSUM = "a wrong CRC32C"
    WRONG_WIRE_TYPE = "another wire type than Join settled"
    WRONG_VALUES = "wrong values"
    WRONG_BUFFERS = "wrong bytes of a BUFFER"
    TRUNCATING_BFLOAT16 = "bfloat16 truncated instead of rounded half to even"
    WRONG_DIGEST = "a wrong layout digest"
    WRONG_RESUME = "a pull that continues where it cannot"
    UNFINISHED_PARAMETERS = "it trained on parameters that were not complete"
    WRONG_SEQUENCE = "a wrong sequence"
    STALE_BASE = "a base version that is not the session's"
    STALE_DELTA = "a delta of parameters that were replaced"
    WRONG_COMMIT_ID = "another commit_id than several servers require"
    NEW_SEQUENCE_ON_RETRY = "a new sequence for a commit whose outcome was open"
    OTHER_BYTES_ON_RETRY = "other bytes under the same sequence"
    NO_CHECKSUM_IN_REPEAT = "a repeat without payload_crc32c"
    IGNORED_RETRY_INFO = "it came back before RetryInfo allowed it"
    RETRIED_WITHOUT_RETRY_INFO = "it repeated what must not be repeated"
    IGNORED_ETA = "another learning rate than the server's"
    IGNORED_LOCAL_STEPS = "another delta than the run's local steps make"
    IGNORED_FINISHED = "it went on after the run was finished"


@dataclass
class FaultError(Exception):
    """Violation of the contract.

    `after`: preceding disturbance and calls; empty: none.
    """

    name: FaultName
    expected: str
    came: str
    place: Place
    after: str = ""

    def __str__(self) -> str:
        after = f", after {self.after}" if self.after else ""
        return f"{self.name.name}: expected {self.expected}; came {self.came}{after} ({self.place.link})"
