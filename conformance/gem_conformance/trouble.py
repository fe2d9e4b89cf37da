"""The last disturbance."""

from __future__ import annotations

from dataclasses import dataclass, field

from gem_conformance.faults import Place
from gem_conformance.wire import Refusal

__all__ = ["Trouble", "refused"]

_JOIN_AND_PULL = "Join with the same session id, Pull, and a commit of a new delta"
# After a refusal without RetryInfo.
_AFTER_REFUSAL = {
    "STALE_BASE": ("Pull, and a commit of a new delta under the same sequence", Place.RETRIES),
    "SEQUENCE_GAP": ("Join, and a commit of its last_applied_sequence + 1", Place.RETRIES),
    "EXPIRED_SESSION": (_JOIN_AND_PULL, Place.RETRIES),
    "RUN_FINISHED": ("Leave, and the end of the process with status 0", Place.END),
}


@dataclass(slots=True)
class Trouble:
    """Disturbance, until the next reply to a commit.

    `done` continues "the kit had". `since`: later calls.
    """

    done: str
    expected: str
    place: Place
    since: list[str] = field(default_factory=list)

    @staticmethod
    def restarted() -> Trouble:
        """Restart with another incarnation."""
        return Trouble("killed the server, and started another incarnation of it", _JOIN_AND_PULL, Place.RETRIES)

    def record(self, call: str) -> None:
        """Consecutive repeats count once."""
        if self.since[-1:] != [call]:
            self.since.append(call)

    def record_refusal(self, call: str, reason: str) -> None:
        """Mark the last call as refused."""
        if self.since[-1:] == [call]:
            self.since.pop()
        self.record(f"{call} (refused with {reason})")

    def __str__(self) -> str:
        since = f"; since then: {', '.join(self.since)}" if self.since else ""
        return f"the kit had {self.done}{since}"


def refused(what: str, refusal: Refusal) -> Trouble:
    """A refused call's trouble."""
    done = f"refused {what} with {refusal.reason}"
    if refusal.retry_after is not None:
        done += f" and a RetryInfo of {refusal.retry_after:g} s"
        return Trouble(done, f"{what} again, with the identical bytes, no sooner than that", Place.REFUSALS)
    expected, place = _AFTER_REFUSAL.get(
        refusal.reason, ("the end of the process, with a status other than 0 and 3", Place.REFUSALS)
    )
    return Trouble(done, expected, place)
