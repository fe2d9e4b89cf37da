"""Strict, correct server as a sequence of steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import numpy as np
from gemps.v1 import commit_pb2, parameters_pb2, run_pb2, session_pb2, status_pb2
from google.protobuf.message import Message
from numpy.typing import NDArray

from gem_conformance.central import Attempt, Central, Clock, Content, Session
from gem_conformance.commits import Commit, buffers_after, judge_checksum, judge_header, judge_payload, receive_whole
from gem_conformance.faults import FaultError, FaultName, Place
from gem_conformance.join import join_response, joined_session
from gem_conformance.judge import Expected, Upload, judge_values
from gem_conformance.layouts import layout_to
from gem_conformance.limits import Limits
from gem_conformance.pull import Pull, judge_pull
from gem_conformance.shards import ShardGroup
from gem_conformance.talk import NOT_SPOKEN, Talk, answer, call_of, is_call, parse, refusal
from gem_conformance.task import Task, buffer_bytes, first_parameters
from gem_conformance.transfers import Transfers, as_pull
from gem_conformance.trouble import Trouble, refused
from gem_conformance.wire import TORN, Call, Event, Kind, Refusal, Wire
from gem_core.checksum import crc32c
from gem_core.payload import PayloadFormat
from gem_core.shards import Shard
from gem_core.wire_types import BLOCKS, WireType, decode

__all__ = ["Play", "perform_together"]

# A looping worker makes thousands.
_MOST_CALLS = 60
# Seconds to wait for a protest: minimum, maximum, reactions.
_PAUSE, _MOST_PAUSE, _REACTIONS = 0.25, 3.0, 3
# Seconds between two looks at the other servers.
_MEETING = 0.02

_Found = TypeVar("_Found")
_Message = TypeVar("_Message", bound=Message)


class _StoppedError(Exception):
    """The candidate ended, as it may."""


class Play:
    """Scenario's server. Scenario thread only.

    `by_hand`: no process. `shard`: what it holds of the task's model; `shards`: addresses of the others, at the
    primary.
    """

    def __init__(
        self,
        task: Task,
        wire: Wire,
        limits: Limits,
        *,
        worker_name: str,
        chunk_bytes: int,
        may_not_speak: bool = False,
        by_hand: bool = False,
        shard: Shard | None = None,
        group: ShardGroup | None = None,
        shards: Sequence[str] = (),
    ) -> None:
        self.shard = shard or Shard()
        self._layout = self.shard.layout_of(task.layout)
        self.central = Central(replace(task, layout=self._layout))
        self.limits = limits
        self.digest = self._layout.digest
        self._group = group or ShardGroup()
        self._shards = shards
        self._task = task
        self._talk = Talk(wire, may_not_speak=may_not_speak)
        self._worker_name = worker_name
        self._chunk_bytes = chunk_bytes
        self._by_hand = by_hand
        self._session: Session | None = None
        # Refusal while the session is unknown.
        self._lost_reason = ""
        # Applied at the next commit or pull.
        self._late: Commit | None = None
        self._transfers = Transfers(self.central, chunk_bytes)
        self._calls = 0
        # The worker must react to it.
        self._trouble: Trouble | None = None
        self._may_commit = True
        self._may_stop = False
        self._may_not_speak = may_not_speak
        self._has_left = False

    @property
    def session(self) -> Session:
        """Candidate's session."""
        if self._session is None:
            raise AssertionError("no worker has joined yet")
        return self._session

    def perform(self, steps: Callable[[Play], None]) -> None:
        """Run a scenario; a FaultError gets the trouble."""
        try:
            steps(self)
        except FaultError as fault:
            fault.after = str(self._trouble or "")
            if not self.shard.is_whole:
                fault.came += f" (at shard {self.shard})"
            raise

    def abandon(self) -> None:
        """Let the scenario end, because another server's has failed. Thread-safe."""
        self._talk.wire.events.put(Event(Kind.EXITED))

    def initialised_by_others(self, *, narrow: bool = False) -> None:
        """Set parameters; `narrow`: exact in all float types."""
        self.central.be_trained(-self._first_theta() if narrow else self._others_theta())

    def join(self, refusal: Refusal | None = None) -> None:
        """Await a Join and answer or refuse it."""
        event = self._await("Join", Place.SESSIONS)
        if refusal is None:
            self._answer_join(event)
        else:
            self._trouble = refused("Join", refusal)
            self._talk.refuse(call_of(event), refusal)

    def initialise(self) -> None:
        """Await and install the first parameters."""
        event = self._await("Initialize", Place.INITIALIZE)
        call, request = call_of(event), self._initialize_header(event)
        payload = PayloadFormat(self._layout, WireType.FLOAT32)
        upload = Upload(payload, "Initialize")
        while True:
            upload.receive(request.chunk, request.footer if request.HasField("footer") else None)
            if upload.is_complete:
                break
            request = self._part(call, upload, parameters_pb2.InitializeRequest, Place.INITIALIZE)
            if request.HasField("header"):
                raise FaultError(FaultName.OUT_OF_ORDER, "one header", "a second one", Place.INITIALIZE)
        rest = buffer_bytes(self._layout.buffers, 0)
        theta = self._first_theta()
        judge_values(payload, bytes(upload.received), Expected(theta, rest, Place.CONFORMANCE), "the first parameters")
        self._meet()
        self.central.initialise(theta, rest)
        self._say_initialised(call, parameters_pb2.INITIALIZE_OUTCOME_ACCEPTED)

    def already_initialised(self) -> None:
        """Await an upload that loses to another."""
        event = self._await("Initialize", Place.INITIALIZE)
        self._initialize_header(event)
        self.central.be_trained(self._others_theta())
        self._say_initialised(call_of(event), parameters_pb2.INITIALIZE_OUTCOME_ALREADY_INITIALIZED)

    def pull(self) -> Pull:
        """Await a pull; `send` answers it."""
        return self._wait(lambda one: self._judge_pull(one) if is_call(one, "Pull") else None, "Pull", Place.PULL)

    def send(self, pull: Pull, *, tear_after: int | None = None, damaged: bool = False) -> None:
        """Answer a pull, optionally torn after `tear_after` chunks, or damaged."""
        session = self.session
        payload = PayloadFormat(self._layout, session.parameter_wire_type.of_whole)
        parts = self._transfers.begin(payload, pull.snapshot, pull.offset, self.digest, damaged=damaged)
        if pull.request.with_layout:
            parts[0].parameters.layout.CopyFrom(layout_to(self._layout))
        if self._transfers.count == 1 and self.digest == self._layout.digest and not self._may_stop:
            pull.call.send(as_pull(parts.pop(0)).SerializeToString())
            self._await_protest(pull.call)
        messages = [as_pull(one) for one in self._transfers.pack(parts, tear_after)]
        is_sent = self._transfers.send(pull.call, messages, pull.offset, tear_after)
        pull.snapshot.was_sent(whole=is_sent, damaged=damaged)
        if is_sent:
            pull.call.end()
            session.open = None
            if not self.shard.is_secondary:
                self._group.settle()
        self._say_what_was_sent("pull", is_sent=is_sent, damaged=damaged)

    def commit(self, *, next_eta: float | None = None) -> None:
        """Answer a commit, and repeats before it; announce `next_eta`."""
        self.answer(self.new_header(), next_eta=next_eta)

    def answer(self, commit: Commit, *, next_eta: float | None = None) -> None:
        """Apply and answer."""
        self.receive_payload(commit)
        self.apply(commit)
        if next_eta is not None:
            self.central.eta = next_eta
        self.reply(commit)

    def apply_next(self) -> Commit:
        """Apply a commit."""
        commit = self.new_header()
        self.receive_payload(commit)
        self.apply(commit)
        return commit

    def new_header(self) -> Commit:
        """Await a new header; answer repeats."""
        while True:
            event = self._await("Commit", Place.COMMIT, "a commit's header")
            commit = self._judge_header(event)
            if commit is None:
                continue
            self._calls = 0
            if not commit.is_repeat:
                return commit
            if not commit.is_alone:
                receive_whole(commit)
                self._require_whole(commit)
                judge_checksum(commit)
            self.reply(commit)

    def header_unless_it_stops(self, why: str, place: Place) -> Commit | None:
        """As `new_header`; None if the candidate exits with an error."""
        self._may_stop = True
        try:
            return self.new_header()
        except _StoppedError:
            if self._talk.exit_status == 0:
                raise FaultError(FaultName.WRONG_EXIT, f"a non-zero exit status: {why}", "0", place) from None
            return None
        finally:
            self._may_stop = False

    def quiet(self, commit: Commit, seconds: float) -> None:
        """Nothing may come on this stream."""
        self._require_alone(commit)
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            event = self._talk.next(left)
            if event is None:
                return
            if event.call is commit.call and event.kind is Kind.MESSAGE:
                raise FaultError(
                    FaultName.DATA_BEFORE_PROCEED,
                    f"nothing behind the header of {commit.header.byte_count} bytes before proceed",
                    "another message",
                    Place.COMMIT,
                )
            self._serve(event)

    def proceed(self, commit: Commit) -> None:
        """Send proceed."""
        self._require_alone(commit)
        said = commit_pb2.CommitResponse(proceed=commit_pb2.Proceed(sequence=commit.header.sequence))
        commit.call.send(said.SerializeToString())

    def receive_payload(self, commit: Commit) -> None:
        """Take and judge the payload."""
        if commit.is_alone:
            self.proceed(commit)
        else:
            receive_whole(commit)
            self._require_whole(commit)
        self.receive_rest(commit)

    def receive_part(self, commit: Commit) -> None:
        """Take one message."""
        upload = commit.upload
        message = self._part(commit.call, upload, commit_pb2.CommitRequest, Place.COMMIT)
        if message.HasField("header"):
            if upload.has_all_bytes:
                raise upload.no_footer("the next header")
            raise FaultError(
                FaultName.OUT_OF_ORDER,
                "the chunks of one commit, and its footer, before the next header",
                f"a header behind {len(upload.received)} of {commit.header.byte_count} bytes",
                Place.COMMIT,
            )
        upload.receive(message.chunk, message.footer if message.HasField("footer") else None)

    def receive_rest(self, commit: Commit) -> None:
        """Take and judge the rest."""
        while not commit.upload.is_complete:
            self.receive_part(commit)
        judge_payload(commit, self.session, self.central)

    def apply(self, commit: Commit) -> None:
        """Apply others' commits, then this one, once all shards hold their pieces."""
        self._meet()
        if not self.shard.is_secondary:
            self._group.settle()
        session, payload = self.session, commit.upload.payload
        staleness = self.central.others_commit()
        data = bytes(commit.upload.received)
        values = np.empty(self._layout.parameter_count, np.float32)
        decode(session.delta_wire_type, memoryview(data)[: payload.parameter_bytes], values)
        self.central.apply(values, buffers_after(commit, self.central))
        if session.delta_wire_type in BLOCKS:
            session.left_out = session.due - values
        session.last_applied = commit.header.sequence
        session.content = Content(commit.header.wire_type, commit.header.byte_count, crc32c(data))
        session.stored = commit_pb2.Verdict(
            sequence=commit.header.sequence, version=self.central.newest_version.to_wire(), staleness=staleness
        )
        session.stored.statistics.mean_pi = 1.0
        session.hold(self.central.snapshot())

    def reply(
        self, commit: Commit, *, tear_after: int | None = None, damaged: bool = False, pause: float = 0.0
    ) -> None:
        """Send verdict and parameters, optionally torn after `tear_after` chunks.

        `pause`: seconds after each chunk.
        """
        session = self.session
        if session.stored is None:
            raise AssertionError("nothing was applied")
        if session.snapshot is None:
            session.hold(self.central.snapshot())
        snapshot = session.snapshot
        if snapshot is None:
            raise AssertionError("no snapshot")
        verdict = commit_pb2.Verdict()
        verdict.CopyFrom(session.stored)
        verdict.duplicate = commit.is_repeat
        verdict.run_state = self.central.run_state
        verdict.next_eta = self._said_eta
        wire_type = session.parameter_wire_type
        base = commit.base if wire_type in BLOCKS else None
        payload = PayloadFormat(self._layout, wire_type.of_whole if base is None else wire_type)
        parts = self._transfers.begin(payload, snapshot, 0, self.digest, damaged=damaged, base=base)
        parts.insert(0, commit_pb2.CommitResponse(verdict=verdict))
        is_sent = self._transfers.send(commit.call, self._transfers.pack(parts, tear_after), 0, tear_after, pause)
        if base is not None:
            self._transfers.sent = 0  # differences cannot be resumed
        snapshot.was_sent(whole=is_sent, damaged=damaged)
        session.record_eta(self.central.eta)
        session.open = None
        self._trouble = None
        if self.central.run_state == run_pb2.RUN_STATE_FINISHED:
            self._said_finished(f"the verdict of commit {commit.header.sequence}")
        self._say_what_was_sent(f"reply to commit {commit.header.sequence}", is_sent=is_sent, damaged=damaged)

    def tear(self, commit: Commit, *, applied_late: bool = False) -> None:
        """Break the stream.

        `applied_late`: apply at the next commit or pull.
        """
        name, bytes_ = f"commit {commit.header.sequence}", len(commit.upload.received)
        self._late = commit if applied_late else None
        if commit.upload.is_complete:
            done, expected = f"broken the stream of {name} behind its footer", "Heartbeat, then the commit again"
        else:
            done, expected = (
                f"broken the stream of {name} behind {bytes_} bytes",
                "Heartbeat, then the identical bytes again",
            )
        self._trouble = Trouble(done, expected, Place.RETRIES)
        commit.call.end(TORN)
        self._leave_open(commit)

    def refuse(self, commit: Commit, reason: str, retry_after: float | None = None) -> None:
        """Refuse a commit before its footer, at all shards."""
        self._meet(commit.call)
        if retry_after is None and not self.shard.is_secondary:
            self._group.settle()
        if reason == "EXPIRED_SESSION":
            self._forget_session(reason)
        elif reason == "STALE_BASE":
            self._lose_snapshot()
        elif retry_after is not None:
            self._leave_open(commit)
        elif reason not in ("SEQUENCE_GAP", "RUN_FINISHED"):
            self._may_commit = False
        said = refusal(reason, retry_after)
        self._trouble = refused(f"commit {commit.header.sequence}", said)
        self._talk.refuse(commit.call, said)

    def restart(self, *, lost: int = 0) -> None:
        """Restart on the same port, without `lost` commits."""
        self._meet()
        self._talk.wire.stop()
        self._trouble = Trouble.restarted()
        self.central.incarnation += 1
        self.session.last_applied -= lost
        self.session.stored = None
        self._talk.forget_delays()
        self._forget_session("UNKNOWN_SESSION")
        self._talk.wire.start()

    def last_commit(self) -> None:
        """Finish with one more commit."""
        commit = self.apply_next()
        self.central.run_state = run_pb2.RUN_STATE_FINISHED
        self.reply(commit)
        self.finish()

    def finish(self, *, was_refused: bool = False) -> None:
        """Expect Leave and exit status 0; a commit may be refused unless `was_refused`."""
        status = self._see_it_end(leaving=True, was_refused=was_refused)
        if status not in (0, None):
            raise FaultError(
                FaultName.WRONG_EXIT, "exit status 0 at the end of a run", f"exit status {status}", Place.END
            )
        if not (self._has_left or self.shard.is_secondary):
            raise FaultError(FaultName.NO_LEAVE, "Leave when the run is finished", "the end of the process", Place.END)

    def must_stop(self, why: str, place: Place) -> None:
        """Expect an exit status other than 0 and 3."""
        status = self._see_it_end(leaving=False)
        if status in (0, NOT_SPOKEN):
            raise FaultError(FaultName.WRONG_EXIT, f"a non-zero exit status other than 3: {why}", f"{status}", place)

    def _see_it_end(self, *, leaving: bool, was_refused: bool = False) -> int | None:
        """Exit status, if any.

        `leaving`: one commit may be refused, unless `was_refused`.
        """
        if self._by_hand and self.shard.is_secondary:
            return None
        until = time.monotonic() + self.limits.answer + self.limits.exit
        while True:
            event = self._next(max(0.0, until - time.monotonic()))
            if event is None:
                raise self._not_ended(leaving=leaving)
            if event.kind is Kind.EXITED:
                return event.status
            if is_call(event, "Leave"):
                self._answer_leave(event)
                self._has_left = True
                if self._by_hand:
                    return None
                until = time.monotonic() + self.limits.exit
            elif is_call(event, "Commit") and leaving:
                if was_refused:
                    raise FaultError(
                        FaultName.IGNORED_FINISHED, "Leave when the run is finished", "another commit", Place.END
                    )
                was_refused = True
                self._refuse(call_of(event), refusal("RUN_FINISHED"))
            else:
                self._serve(event)

    def _not_ended(self, *, leaving: bool) -> FaultError:
        stream = ", with a commit stream still open" if self._talk.has_open_commit_stream else ""
        if self._has_left:
            expected, came = "the end of the process behind Leave", f"Leave, then nothing for {self.limits.exit:g} s"
            return FaultError(FaultName.NOT_ENDED, expected, came + stream, Place.END)
        came = f"no Leave, and no end within {self.limits.answer + self.limits.exit:g} s{stream}"
        if leaving:
            return FaultError(FaultName.NO_LEAVE, "Leave, and the end of the process", came, Place.END)
        trouble = self._trouble
        expected, place = (trouble.expected, trouble.place) if trouble else ("the end of the process", Place.END)
        return FaultError(FaultName.NOT_ENDED, expected, came, place)

    def _await(self, method: str, place: Place, what: str = "") -> Event:
        return self._wait(lambda one: one if is_call(one, method) else None, what or method, place)

    def _wait(self, pick: Callable[[Event], _Found | None], what: str, place: Place) -> _Found:
        while True:
            limit = self.limits.answer if self._session is not None else self.limits.start
            event = self._next(limit + self._talk.asked_to_wait)
            if event is not None and event.kind is Kind.EXITED and self._may_stop:
                raise _StoppedError
            if event is None or event.kind is Kind.EXITED:
                expected, where = self._awaited(what, place)
                if event is None:
                    raise FaultError(FaultName.SILENT, expected, f"nothing for {limit:g} s", where)
                came = f"the end of the process, exit status {event.status}"
                raise FaultError(FaultName.STOPPED, expected, came, where)
            found = pick(event)
            if found is not None:
                return found
            self._serve(event)

    def _meet(self, refused: Call | None = None) -> None:
        """Wait until all servers are at this step; answer calls other than `refused`."""
        meeting = self._group.arrive()
        while not self._group.all_are_at(meeting):
            event = self._next(_MEETING)
            if event is not None and (refused is None or event.call is not refused):
                self._serve(event)

    def _awaited(self, what: str, place: Place) -> tuple[str, Place]:
        if self._trouble is not None:
            return self._trouble.expected, self._trouble.place
        return (what, place) if self._session is not None else ("Join", Place.SESSIONS)

    def _next(self, seconds: float) -> Event | None:
        event = self._talk.next(seconds)
        if event is not None and event.kind is Kind.MESSAGE and self._trouble is not None:
            self._trouble.record(call_of(event).method)
        return event

    def _refuse(self, call: Call, refusal: Refusal) -> None:
        if self._trouble is not None:
            self._trouble.record_refusal(call.method, refusal.reason)
        self._talk.refuse(call, refusal)

    def _serve(self, event: Event) -> None:
        if event.kind is Kind.EXITED:
            came = f"the end of the process, exit status {event.status}"
            raise FaultError(FaultName.STOPPED, "a worker that continues", came, Place.CONFORMANCE)
        call = call_of(event)
        if event.kind is Kind.HALF_CLOSED and call.method == "Commit":
            call.end()
        if event.kind is not Kind.MESSAGE:
            return
        self._count(call)
        match call.method:
            case "Join":
                self._answer_join(event)
            case "Pull":
                pull = self._judge_pull(event)
                if pull is not None:
                    self.send(pull)
            case "Heartbeat":
                self._answer_heartbeat(event)
            case "Leave":
                self._answer_leave(event)
                if not (self._may_stop or (self._may_not_speak and not self.session.last_applied)):
                    expected = "a worker that stays until the run is finished"
                    raise FaultError(FaultName.LEFT_EARLY, expected, "Leave", Place.END)
            case "GetStatus":
                status = status_pb2.GetStatusResponse()
                status.status.run_state = self.central.run_state
                answer(call, status)
            case "Commit":
                # The commit's own fault takes precedence.
                if self._judge_header(event) is not None:
                    expected = "one commit at a time, each after the other's reply"
                    raise FaultError(FaultName.OUT_OF_ORDER, expected, "another one", Place.COMMIT)
            case "WatchStatus" | "GetHistory":
                self._refuse(call, refusal("NOT_OFFERED"))
            case method:
                raise FaultError(
                    FaultName.UNEXPECTED_CALL, "Join, Pull, Commit, Heartbeat or Leave", method, Place.SESSIONS
                )

    def _count(self, call: Call) -> None:
        self._calls += 1
        if self._calls > _MOST_CALLS:
            came = f"{_MOST_CALLS} calls without that, the last of them {call.method}"
            raise FaultError(FaultName.NO_PROGRESS, "a worker that continues training", came, Place.RETRIES)

    def _part(self, call: Call, upload: Upload, kind: type[_Message], place: Place) -> _Message:
        limit = self.limits.footer if upload.has_all_bytes else self.limits.answer
        until = time.monotonic() + limit
        while True:
            event = self._talk.next(max(0.0, until - time.monotonic()))
            if event is None or event.kind is Kind.EXITED or (event.call is call and event.kind is not Kind.MESSAGE):
                came = f"nothing for {limit:g} s" if event is None else event.kind.value
                if upload.has_all_bytes:
                    raise upload.no_footer(came)
                name = FaultName.SILENT if event is None else FaultName.STOPPED
                raise FaultError(name, f"further chunks behind {len(upload.received)} bytes", came, place)
            if event.call is call:
                return parse(event, kind)
            self._serve(event)

    def _await_protest(self, call: Call) -> None:
        if not self.shard.is_secondary:
            self._group.reaction = self._talk.reaction
        until = time.monotonic() + min(_MOST_PAUSE, max(_PAUSE, _REACTIONS * self._group.reaction))
        while (left := until - time.monotonic()) > 0:
            event = self._talk.next(left)
            if event is None:
                return
            ended = event.kind is Kind.EXITED or (event.kind is Kind.ENDED and event.call is call)
            if ended or is_call(event, "Leave"):
                raise FaultError(
                    FaultName.WRONG_DIGEST,
                    f"a worker that continues with a header of the digest {self._layout.digest.hex()[:16]}..., "
                    "which is that of its layout",
                    "its end" if event.kind is Kind.EXITED else "the end of its pull",
                    Place.LAYOUTS,
                )
            self._serve(event)

    def _answer_join(self, event: Event) -> None:
        request = self._group.judge_join(self.shard, parse(event, session_pb2.JoinRequest))
        self._session = joined_session(request, self._task, self._worker_name, self._session, self.central.eta)
        self._session.is_known = True
        self._session.record_eta(self.central.eta)
        response = join_response(request, self.central, self._session, self._chunk_bytes, self._said_eta, self._shards)
        answer(call_of(event), response)
        self._talk.joined()
        if self.central.run_state == run_pb2.RUN_STATE_FINISHED and self._trouble is None:
            self._said_finished("Join's answer")

    def _answer_heartbeat(self, event: Event) -> None:
        call, request = call_of(event), parse(event, session_pb2.HeartbeatRequest)
        if self._is_known(call, request.session_id):
            answer(
                call,
                session_pb2.HeartbeatResponse(
                    incarnation=self.central.incarnation,
                    run_state=self.central.run_state,
                    last_applied_sequence=self.session.last_applied,
                    next_eta=self._said_eta,
                ),
            )

    def _answer_leave(self, event: Event) -> None:
        request = parse(event, session_pb2.LeaveRequest)
        self._check_session(request.session_id)
        if self.shard.is_secondary:
            raise FaultError(FaultName.UNEXPECTED_CALL, "Leave at the primary alone", "Leave", Place.COMMIT)
        state, last = self.central.run_state, self.session.last_applied
        answer(call_of(event), session_pb2.LeaveResponse(run_state=state, last_applied_sequence=last))

    def _check_session(self, session_id: bytes) -> None:
        if self._session is None or session_id != self._session.session_id:
            raise FaultError(
                FaultName.WRONG_SESSION, "the session id of Join in every call", "another one", Place.SESSIONS
            )

    def _is_known(self, call: Call, session_id: bytes) -> bool:
        self._check_session(session_id)
        if not self.session.is_known:
            self._refuse(call, refusal(self._lost_reason))
        return self.session.is_known

    def _forget_session(self, reason: str) -> None:
        self._lost_reason = reason
        self.session.is_known = False
        if not self.shard.is_secondary:
            self._group.end_session()
        self._lose_snapshot()

    def _lose_snapshot(self) -> None:
        """Others commit, so that old and new deltas differ."""
        self.session.lose_snapshot()
        self.central.others_commit()

    def _initialize_header(self, event: Event) -> parameters_pb2.InitializeRequest:
        request = parse(event, parameters_pb2.InitializeRequest)
        expected = PayloadFormat(self._layout, WireType.FLOAT32).byte_count
        if not request.HasField("header"):
            raise FaultError(FaultName.OUT_OF_ORDER, "the header first", "a message without it", Place.INITIALIZE)
        self._check_session(request.header.session_id)
        if request.header.byte_count != expected:
            raise FaultError(
                FaultName.WRONG_SIZE,
                f"{expected} bytes: PARAMETERs as FLOAT32, then BUFFERs",
                f"a header of {request.header.byte_count} bytes",
                Place.INITIALIZE,
            )
        return request

    def _say_initialised(self, call: Call, outcome: parameters_pb2.InitializeOutcome) -> None:
        answer(call, parameters_pb2.InitializeResponse(outcome=outcome, version=self.central.newest_version.to_wire()))

    def _others_theta(self) -> NDArray[np.float32]:
        """9 bits of significand give bfloat16 ties to round."""
        count = self._task.layout.parameter_count
        return self._range((((np.arange(count) * 7 + 510) % 1021 - 510) / 512).astype(np.float32))

    def _first_theta(self) -> NDArray[np.float32]:
        return self._range(first_parameters(self._task.layout.parameter_count))

    def _range(self, theta: NDArray[np.float32]) -> NDArray[np.float32]:
        return theta[self.shard.range_of(theta.size)].copy()

    @property
    def _said_eta(self) -> float:
        """A secondary's does not count."""
        return self.central.eta * (2 if self.shard.is_secondary else 1)

    def _judge_pull(self, event: Event) -> Pull | None:
        """None: answered."""
        call, request = call_of(event), parse(event, parameters_pb2.PullRequest)
        if not self._is_known(call, request.session_id):
            return None
        self._apply_late()
        pulled = self._group.pulled if self.shard.is_secondary else None
        outcome = judge_pull(call, request, self.session, self.central, self._transfers.sent, pulled)
        if isinstance(outcome, Refusal):
            self._refuse(call, outcome)
        elif isinstance(outcome, Pull):
            if not self.shard.is_secondary:
                self._group.pulled = outcome.snapshot.version.clock
            return outcome
        else:
            answer(call, parameters_pb2.PullResponse(not_modified=outcome))
        return None

    def _judge_header(self, event: Event) -> Commit | None:
        """None: refused."""
        call, message = call_of(event), parse(event, commit_pb2.CommitRequest)
        if not message.HasField("header"):
            raise FaultError(FaultName.OUT_OF_ORDER, "a commit's header first", "a message without it", Place.COMMIT)
        came = f"a commit of sequence {message.header.sequence}"
        if not self._may_commit:
            expected = "the end, after a refusal without RetryInfo that the table does not name"
            raise FaultError(FaultName.RETRIED_WITHOUT_RETRY_INFO, expected, came, Place.REFUSALS)
        if not self._is_known(call, message.header.session_id):
            self._count(call)
            return None
        if self.digest != self._layout.digest:
            expected = "no training on parameters whose header has the digest of another layout"
            raise FaultError(FaultName.WRONG_DIGEST, expected, came, Place.LAYOUTS)
        self._apply_late()
        commit = judge_header(call, message, self.session, self._delta_format(), self._chunk_bytes)
        self._group.judge_commit(message.header, is_repeat=commit.is_repeat)
        return commit

    def _require_alone(self, commit: Commit) -> None:
        if not commit.is_alone:
            receive_whole(commit)

    def _require_whole(self, commit: Commit) -> None:
        if commit.upload.is_complete:
            return
        if commit.upload.has_all_bytes:
            self._part(commit.call, commit.upload, commit_pb2.CommitRequest, Place.COMMIT)  # raises if no footer comes
        expected = "header, chunk and footer in one message, or the header alone"
        raise FaultError(FaultName.OUT_OF_ORDER, expected, "only a part of them in it", Place.COMMIT)

    def _delta_format(self) -> PayloadFormat:
        return PayloadFormat(self._layout, self.session.delta_wire_type)

    def _apply_late(self) -> None:
        late, self._late = self._late, None
        if late is not None:
            self.apply(late)

    def _said_finished(self, where: str) -> None:
        expected = "Leave, and the end of the process with status 0"
        self._trouble = Trouble(f"said in {where} that the run is finished", expected, Place.END)

    def _say_what_was_sent(self, what: str, *, is_sent: bool, damaged: bool) -> None:
        if not is_sent:
            done, place = f"torn the {what} behind {self._transfers.sent} bytes of its parameters", Place.PULL
            self._trouble = Trouble(done, "Pull, of the rest or from the start", place)
        elif damaged:
            done = f"sent a {what} whose footer does not match its bytes"
            self._trouble = Trouble(done, "Pull from the start, or the end of the process", Place.CHUNKS)
        elif self.digest != self._layout.digest:
            done = f"sent a {what} whose header has the digest of another layout"
            expected = "the end of the process, with a status other than 0 and 3"
            self._trouble = Trouble(done, expected, Place.LAYOUTS)

    def _leave_open(self, commit: Commit) -> None:
        header, upload = commit.header, commit.upload
        base = Clock.from_wire(header.base_version)
        self.session.open = Attempt(header.sequence, base, bytes(upload.received), upload.is_complete)


def perform_together(plays: Sequence[Play], steps: Callable[[Play], None]) -> None:
    """Run a scenario at each server, in a thread each. Raises the first error."""
    errors: list[BaseException] = []

    def perform(play: Play) -> None:
        try:
            play.perform(steps)
        except BaseException as error:
            errors.append(error)
            for other in plays:
                other.abandon()

    with ThreadPoolExecutor(len(plays)) as threads:
        list(threads.map(perform, plays))
    if errors:
        raise errors[0]
