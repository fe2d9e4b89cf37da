"""The state of one server while it plays a scenario, and the wait for what the candidate must do next.

Every server of a scenario has one `Play`, and one thread that takes the scenario's steps with it. Only this thread
touches the `Play`, except that other threads may call `abandon`.

A step (`scenarios/steps.py`) awaits a certain event. Until it comes, `answers.py` answers every other legal call as a
correct server does. The `judge_*` modules raise a FaultError for what the contract forbids. A `Play` counts calls that
are no progress and watches the time limits, so that a scenario always ends.
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
from gem_conformance.conversation import Conversation, call_of, is_call, parse
from gem_conformance.faults import FaultError, FaultName, Place
from gem_conformance.grpc_server import Call, Event, EventKind, GrpcServer, Refusal
from gem_conformance.judge_commit import Commit
from gem_conformance.judge_values import Upload
from gem_conformance.lane import LaneListener
from gem_conformance.limits import Limits
from gem_conformance.refusals import Disturbance, Forbidden
from gem_conformance.shards import ShardGroup
from gem_conformance.state import Central, Session
from gem_conformance.task import first_parameters
from gem_core.payload import PayloadFormat
from gem_core.shards import Shard

if TYPE_CHECKING:
    from gem_conformance.candidate import Candidate
    from gem_conformance.scenarios.scenario import Scenario

__all__ = ["Play", "StoppedError"]

# Calls without progress after which the scenario fails. A worker that retries correctly makes far fewer, and one in an
# endless loop would make thousands.
_MOST_CALLS = 60
# Seconds between two checks whether the other servers have reached the same step.
_MEETING_POLL_SECONDS = 0.02
# When a process ends, its connections break first. Seconds within which the event of its exit must follow.
_EXIT_SECONDS = 0.5

_Found = TypeVar("_Found")
_Message = TypeVar("_Message", bound=Message)


class StoppedError(Exception):
    """The candidate's process ended at a step where it may end, so that the scenario is over."""


class Play:
    """One server of a scenario that is being played.

    Attributes:
        scenario, limits: what is played, and its time limits.
        shard: this server's part of the model.
        group: what it shares with the other servers of the scenario.
        shards: the addresses of the other servers, which the answer to Join contains; empty at secondaries.
        conversation: the candidate's events, and the way to end its calls.
        process: the candidate's process; None if it was started by hand.
        layout: the part of the task's layout that belongs to this shard.
        central: the central variable and the run.
        known_session: the candidate's session; None before its first Join.
        digest, join_digest: the layout digest in the headers of parameters, and the one in the answer to Join.
        lane: the listener for connections to the lane; None if the answer to Join offers no lane.
        lost_reason: the reason of refusals for calls of a session that the server has lost, such as UNKNOWN_SESSION.
        late_commit: a complete commit that the server applies only at the session's next call, or None.
        sent_bytes: how many bytes of the newest transfer's payload were sent; a pull may resume there.
        transfers: the number of transfers of parameters so far.
        disturbance: the last failure that the kit caused, to which the candidate must react; None if it has reacted.
        forbidden: the calls that the candidate must not make any more; None if it may make all.
        may_stop: whether the process may end with an error at this step.
        is_interrupted: whether it was sent SIGTERM.
        has_left, leave_reason: whether Leave came, and the reason in it.
        earlier_processes: the session ids of processes that the kit has killed.
        used: the optional parts that the candidate has used.
        step: the step that is being taken, for messages.
    """

    def __init__(
        self,
        scenario: Scenario,
        server: GrpcServer,
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
        self.conversation = Conversation(server, may_be_unsupported=scenario.is_optional)
        self.process = process
        self.lane = LaneListener(server.host, server.events) if "lane" in scenario.uses else None
        self.known_session: Session | None = None
        self.lost_reason = ""
        self.late_commit: Commit | None = None
        self.sent_bytes = 0
        self.transfers = 0
        self.disturbance: Disturbance | None = None
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
        """The candidate's session; it must have joined."""
        if self.known_session is None:
            raise AssertionError("no worker has joined yet")
        return self.known_session

    @property
    def commit(self) -> Commit:
        """The newest commit that the scenario has awaited. A new commit is progress: calls count from 0 again."""
        if self._commit is None:
            raise AssertionError("no commit has come yet")
        return self._commit

    @commit.setter
    def commit(self, commit: Commit) -> None:
        self._commit = commit
        if not commit.is_repeat:
            self._calls = 0

    def abandon(self) -> None:
        """End this server's part of the scenario, because that of another server has failed. Thread-safe."""
        self.conversation.server.events.put(Event(EventKind.EXITED))

    def explain(self, fault: FaultError) -> None:
        """Add to a fault what the kit had done before, the step, and the shard if there are several."""
        fault.after, fault.step = str(self.disturbance or ""), self.step
        if not self.shard.is_whole:
            fault.came += f" (at shard {self.shard})"

    def next(self, seconds: float) -> Event | None:
        """Return the next event, or None if none comes within `seconds`. Raises FaultError for a forbidden call."""
        event = self.conversation.next(seconds)
        if event is None or event.kind is not EventKind.MESSAGE:
            return event
        method = call_of(event).method
        if self.disturbance is not None:
            self.disturbance.record(method)
        forbidden = self.forbidden
        if forbidden is not None and method in forbidden.methods:
            raise FaultError(forbidden.name, forbidden.expected, method, forbidden.place)
        return event

    def wait_for_call(self, method: str, place: Place, what: str = "") -> Event:
        """Wait for a message of a method, and answer all other calls meanwhile.

        Args:
            method: the name of the method, such as "Pull".
            place: the file with the rule that the candidate must make this call.
            what: a description of the call for messages; by default the method.

        Raises:
            FaultError: the candidate broke a rule, sent nothing within the time limit, or ended.
            StoppedError: the candidate ended, which this step allows.
        """
        return self.wait_for(lambda one: one if is_call(one, method) else None, what or method, place)

    def wait_for(self, pick: Callable[[Event], _Found | None], what: str, place: Place) -> _Found:
        """Wait as `wait_for_call` does until `pick` returns something else than None for an event, and return that."""
        while True:
            limit = self.limits.answer if self.known_session is not None else self.limits.start
            event = self.next(limit + self.conversation.remaining_delay)
            if event is not None and event.kind is EventKind.EXITED and self.may_stop:
                raise StoppedError
            if event is None or event.kind is EventKind.EXITED:
                expected, where = self._expected_call(what, place)
                if event is None:
                    raise FaultError(FaultName.SILENT, expected, f"nothing for {limit:g} s", where)
                raise FaultError(FaultName.STOPPED, expected, _exit_text(event), where)
            found = pick(event)
            if found is not None:
                return found
            if event.call is None or not event.call.is_over:
                self.serve(event)

    def next_part(self, call: Call, upload: Upload, kind: type[_Message]) -> _Message:
        """Wait for the next message of an upload, and answer calls other than `call` meanwhile.

        Raises:
            FaultError: the upload does not continue within the time limit, or something else comes in its place.
        """
        limit = self.limits.footer if upload.has_all_bytes else self.limits.answer
        until = time.monotonic() + limit
        while True:
            event = self.conversation.next(max(0.0, until - time.monotonic()))
            if event is not None and event.kind is EventKind.ENDED and event.call is call:
                event = self.conversation.next(_EXIT_SECONDS) or event  # if the process ended, report that instead
            if event is None and not upload.has_all_bytes:
                raise self._no_chunk(upload, f"nothing for {limit:g} s")
            if event is None or (event.call is call and event.kind is not EventKind.MESSAGE):
                raise upload.missing_part(f"nothing for {limit:g} s" if event is None else event.kind.value)
            if event.kind is EventKind.EXITED:
                expected = f"{upload.label}: further parts after {len(upload.received)} bytes"
                raise FaultError(FaultName.STOPPED, expected, _exit_text(event), Place.TRANSFER)
            if event.call is call:
                return parse(event, kind)
            self.serve(event)

    def serve(self, event: Event) -> None:
        """Answer an event that no step awaits, as a correct server does. Raises FaultError if it is illegal here."""
        if event.kind is EventKind.EXITED:
            raise FaultError(FaultName.STOPPED, "a worker that continues", _exit_text(event), Place.CONFORMANCE)
        if event.kind is EventKind.MESSAGE:
            self.count_call(call_of(event))
        answers.serve(self, event)

    def count_call(self, call: Call) -> None:
        """Count a call that is no progress. Raises FaultError after 60 of them without a new commit."""
        self._calls += 1
        if self._calls > _MOST_CALLS:
            came = f"{_MOST_CALLS} calls without that, the last of them {call.method}"
            raise FaultError(FaultName.NO_PROGRESS, "a worker that continues training", came, Place.RULE)

    def refuse(self, call: Call, refusal: Refusal) -> None:
        """End a call with a refusal, and record it in the disturbance that faults quote."""
        if self.disturbance is not None and refusal.reason:
            self.disturbance.record_refusal(call.method, refusal.reason)
        self.conversation.refuse(call, refusal)

    def wait_for_other_servers(self, refused: Call | None = None) -> None:
        """Wait until all servers of the scenario are at this step, and answer calls meanwhile.

        `refused` is the call that the step is about to refuse: its further messages are dropped.
        """
        meeting = self.group.arrive()
        while not self.group.all_are_at(meeting):
            event = self.next(_MEETING_POLL_SECONDS)
            if event is not None and (refused is None or event.call is not refused):
                self.serve(event)

    @property
    def payload(self) -> PayloadFormat:
        """The format of a delta of the candidate's session, with all BUFFERs."""
        return PayloadFormat(self.layout, self.session.delta_wire_type)

    @property
    def eta_to_announce(self) -> float:
        """The learning rate in this server's answers. Workers must ignore that of secondaries, so it is a wrong one."""
        return self.central.eta * (2 if self.shard.is_secondary else 1)

    def others_theta(self) -> NDArray[np.float32]:
        """Return parameters that other workers could have trained (float32, one-dimensional, of this shard).

        Their significands have 9 bits, one more than those of bfloat16, so that rounding meets ties.
        """
        count = self.scenario.task.layout.parameter_count
        return self._of_this_shard((((np.arange(count) * 7 + 510) % 1021 - 510) / 512).astype(np.float32))

    def first_theta(self) -> NDArray[np.float32]:
        """Return the first parameters that the candidate must upload (docs/protocol.md#conformance), of this shard."""
        return self._of_this_shard(first_parameters(self.scenario.task.layout.parameter_count))

    def _of_this_shard(self, theta: NDArray[np.float32]) -> NDArray[np.float32]:
        return theta[self.shard.range_of(theta.size)].copy()

    def _expected_call(self, what: str, place: Place) -> tuple[str, Place]:
        if self.disturbance is not None:
            return self.disturbance.expected, self.disturbance.place
        return (what, place) if self.known_session is not None else ("Join", Place.SESSION)

    def _no_chunk(self, upload: Upload, came: str) -> FaultError:
        commit = self._commit
        if commit is not None and commit.upload is upload and answers.is_early(self, commit):
            expected = f"{upload.label}: chunks without another proceed, which came with the reply before"
            return FaultError(FaultName.IGNORED_EARLY_PROCEED, expected, came, Place.COMMIT)
        expected = f"{upload.label}: further chunks after {len(upload.received)} bytes"
        return FaultError(FaultName.SILENT, expected, came, Place.TRANSFER)


def _exit_text(event: Event) -> str:
    return f"the end of the process, exit status {event.status}"
