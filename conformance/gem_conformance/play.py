"""A scenario that is being played: what the server holds, what was said so far, and the wait for what must come next.

The scenario's thread is the only one here. `scenarios` say what happens in which order; while a step awaits one event,
`answers.py` answers every other legal call as a correct server does; the `judge_*` modules raise a FaultError for what
is not legal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from gem_conformance import answers
from gem_conformance.faults import FaultError, FaultName, Place
from gem_conformance.judge_commit import Commit
from gem_conformance.judge_values import Upload
from gem_conformance.lane import LaneListener
from gem_conformance.limits import Limits
from gem_conformance.refusals import Forbidden, Trouble
from gem_conformance.shards import ShardGroup
from gem_conformance.state import Central, Session
from gem_conformance.talk import Talk, call_of, is_call, parse
from gem_conformance.task import first_parameters
from gem_conformance.wire import Call, Event, Kind, Refusal, Wire
from gem_core.payload import PayloadFormat
from gem_core.shards import Shard

if TYPE_CHECKING:
    from gem_conformance.candidate import Candidate
    from gem_conformance.scenarios.scenario import Scenario

__all__ = ["Play", "StoppedError"]

# A worker in a loop makes thousands.
_MOST_CALLS = 60
# Seconds between two looks at the other servers.
_MEETING = 0.02
# From the end of a process's connections to the news of its own end.
_EXIT_SECONDS = 0.5

_Found = TypeVar("_Found")
_Message = TypeVar("_Message", bound=Message)


class StoppedError(Exception):
    """The candidate ended where it may."""


class Play:
    """The server of a scenario.

    Attributes:
        scenario, limits: what is played, and its time limits.
        shard, group, shards: the server's part of the model, what it shares with the other servers, and where they are.
        process: the candidate's; None: it was started by hand.
        layout: of this server's payloads.
        central, known_session: what the server holds; None: nobody has joined.
        digest, join_digest: what parameters' headers say, and what Join says.
        lane: where to commit by the lane; None: Join offers none.
        lost_reason: with which calls of a session are refused that is not known any more.
        late: a complete commit that is applied at the session's next call.
        sent, transfers: bytes of the newest transfer that were sent, which a pull may continue; number of transfers.
        trouble: the last disturbance, to which the candidate must react.
        forbidden: what the candidate must not call any more.
        may_stop, is_interrupted: whether it may end with an error; whether it was sent SIGTERM.
        has_left, leave_reason: whether Leave came, and why.
        earlier_processes: session ids of processes that were killed.
        used: optional parts that the candidate has used.
        step: the one that is being taken, for messages.
    """

    def __init__(
        self,
        scenario: Scenario,
        wire: Wire,
        limits: Limits,
        process: Candidate | None,
        shard: Shard,
        group: ShardGroup,
        shards: Sequence[str],
    ) -> None:
        self.scenario = scenario
        self.shard = shard
        self.layout = shard.layout_of(scenario.task.layout)
        self.central = Central(replace(scenario.task, layout=self.layout))
        self.limits = limits
        self.digest = self.join_digest = self.layout.digest
        self.group = group
        self.shards = shards
        self.talk = Talk(wire, may_not_speak=scenario.is_optional)
        self.process = process
        self.lane = LaneListener(wire.host, wire.events) if "lane" in scenario.uses else None
        self.known_session: Session | None = None
        self.lost_reason = ""
        self.late: Commit | None = None
        self.sent = 0
        self.transfers = 0
        self.trouble: Trouble | None = None
        self.forbidden: Forbidden | None = None
        self.may_stop = False
        self.has_left = False
        self.leave_reason = ""
        self.is_interrupted = False
        self.earlier_processes: set[bytes] = set()
        self.used: set[str] = set()
        self.step = ""
        self._commit: Commit | None = None
        self._calls = 0

    @property
    def session(self) -> Session:
        """The candidate's session."""
        if self.known_session is None:
            raise AssertionError("no worker has joined yet")
        return self.known_session

    @property
    def commit(self) -> Commit:
        """The commit at which the scenario is."""
        if self._commit is None:
            raise AssertionError("no commit has come yet")
        return self._commit

    @commit.setter
    def commit(self, commit: Commit) -> None:
        self._commit = commit
        if not commit.is_repeat:
            self._calls = 0

    def abandon(self) -> None:
        """Let the scenario end, because another server's has failed. Thread-safe."""
        self.talk.wire.events.put(Event(Kind.EXITED))

    def explain(self, fault: FaultError) -> None:
        """Say in a fault what the kit had done before, and where."""
        fault.after, fault.step = str(self.trouble or ""), self.step
        if not self.shard.is_whole:
            fault.came += f" (at shard {self.shard})"

    def next(self, seconds: float) -> Event | None:
        """Return the next event; None after so many seconds. Raises FaultError for a call that is forbidden."""
        event = self.talk.next(seconds)
        if event is None or event.kind is not Kind.MESSAGE:
            return event
        method = call_of(event).method
        if self.trouble is not None:
            self.trouble.record(method)
        forbidden = self.forbidden
        if forbidden is not None and method in forbidden.methods:
            raise FaultError(forbidden.name, forbidden.expected, method, forbidden.place)
        return event

    def wait(self, method: str, place: Place, what: str = "") -> Event:
        """Await a message of a method, and answer all other calls. Raises FaultError, StoppedError."""
        return self.wait_for(lambda one: one if is_call(one, method) else None, what or method, place)

    def wait_for(self, pick: Callable[[Event], _Found | None], what: str, place: Place) -> _Found:
        """As `wait`, for what `pick` finds; `what` describes it."""
        while True:
            limit = self.limits.answer if self.known_session is not None else self.limits.start
            event = self.next(limit + self.talk.asked_to_wait)
            if event is not None and event.kind is Kind.EXITED and self.may_stop:
                raise StoppedError
            if event is None or event.kind is Kind.EXITED:
                expected, where = self._awaited(what, place)
                if event is None:
                    raise FaultError(FaultName.SILENT, expected, f"nothing for {limit:g} s", where)
                raise FaultError(FaultName.STOPPED, expected, _end(event), where)
            found = pick(event)
            if found is not None:
                return found
            if event.call is None or not event.call.is_over:
                self.serve(event)

    def part(self, call: Call, upload: Upload, kind: type[_Message]) -> _Message:
        """Await the next message of an upload; answer other calls. Raises FaultError."""
        limit = self.limits.footer if upload.has_all_bytes else self.limits.answer
        until = time.monotonic() + limit
        while True:
            event = self.talk.next(max(0.0, until - time.monotonic()))
            if event is not None and event.kind is Kind.ENDED and event.call is call:
                event = self.talk.next(_EXIT_SECONDS) or event  # the process's end explains that of its calls
            if event is None and not upload.has_all_bytes:
                raise self._no_chunk(upload, f"nothing for {limit:g} s", limit)
            if event is None or (event.call is call and event.kind is not Kind.MESSAGE):
                raise upload.ended(f"nothing for {limit:g} s" if event is None else event.kind.value)
            if event.kind is Kind.EXITED:
                expected = f"{upload.what}: further parts behind {len(upload.received)} bytes"
                raise FaultError(FaultName.STOPPED, expected, _end(event), Place.TRANSFER)
            if event.call is call:
                return parse(event, kind)
            self.serve(event)

    def serve(self, event: Event) -> None:
        """Answer what no step awaits. Raises FaultError."""
        if event.kind is Kind.EXITED:
            raise FaultError(FaultName.STOPPED, "a worker that continues", _end(event), Place.CONFORMANCE)
        if event.kind is Kind.MESSAGE:
            self.count(call_of(event))
        answers.serve(self, event)

    def count(self, call: Call) -> None:
        """Count a call that is no progress. Raises FaultError."""
        self._calls += 1
        if self._calls > _MOST_CALLS:
            came = f"{_MOST_CALLS} calls without that, the last of them {call.method}"
            raise FaultError(FaultName.NO_PROGRESS, "a worker that continues training", came, Place.RULE)

    def refuse(self, call: Call, refusal: Refusal) -> None:
        """End a call with an error."""
        if self.trouble is not None and refusal.reason:
            self.trouble.record_refusal(call.method, refusal.reason)
        self.talk.refuse(call, refusal)

    def meet(self, refused: Call | None = None) -> None:
        """Wait until all servers are at this step; answer calls other than `refused`."""
        meeting = self.group.arrive()
        while not self.group.all_are_at(meeting):
            event = self.next(_MEETING)
            if event is not None and (refused is None or event.call is not refused):
                self.serve(event)

    @property
    def payload(self) -> PayloadFormat:
        """The format of a delta."""
        return PayloadFormat(self.layout, self.session.delta_wire_type)

    @property
    def said_eta(self) -> float:
        """The learning rate that this server says; a secondary's does not count, so it says another one."""
        return self.central.eta * (2 if self.shard.is_secondary else 1)

    def others_theta(self) -> NDArray[np.float32]:
        """Parameters that others have trained; 9 bits of significand give bfloat16 ties to round."""
        count = self.scenario.task.layout.parameter_count
        return self._own((((np.arange(count) * 7 + 510) % 1021 - 510) / 512).astype(np.float32))

    def first_theta(self) -> NDArray[np.float32]:
        """The first parameters, as docs/protocol.md#conformance says."""
        return self._own(first_parameters(self.scenario.task.layout.parameter_count))

    def _own(self, theta: NDArray[np.float32]) -> NDArray[np.float32]:
        return theta[self.shard.range_of(theta.size)].copy()

    def _awaited(self, what: str, place: Place) -> tuple[str, Place]:
        if self.trouble is not None:
            return self.trouble.expected, self.trouble.place
        return (what, place) if self.known_session is not None else ("Join", Place.SESSION)

    def _no_chunk(self, upload: Upload, came: str, limit: float) -> FaultError:
        commit = self._commit
        if commit is not None and commit.upload is upload and answers.is_early(self, commit):
            expected = f"{upload.what}: chunks without another proceed, which came with the reply before"
            return FaultError(FaultName.IGNORED_EARLY_PROCEED, expected, came, Place.COMMIT)
        expected = f"{upload.what}: further chunks behind {len(upload.received)} bytes"
        return FaultError(FaultName.SILENT, expected, f"nothing for {limit:g} s", Place.TRANSFER)


def _end(event: Event) -> str:
    return f"the end of the process, exit status {event.status}"
