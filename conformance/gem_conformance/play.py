"""A strict, correct server as a sequence of steps, for the scenarios to write down.

A scenario calls `header`, `take`, `apply`, `reply` (or `commit`, which is all four), and in between refuses, tears or
withholds. Whatever else a worker may do meanwhile (Join, Pull, Heartbeat, opening another stream) is answered as a
correct server does, and judged: every message passes `Play`, which raises a Fault at the first that the contract does
not allow. Everything runs in the thread of the scenario; see wire.py.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import grpc
import numpy as np
from gemps.v1 import commit_pb2, parameters_pb2, run_pb2, session_pb2, status_pb2, transfer_pb2
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from gem_conformance.central import Central, Clock, Content, Session, Snapshot
from gem_conformance.faults import Fault, FaultName, Place
from gem_conformance.judge import Expected, Upload, judge_values
from gem_conformance.layouts import layout_from, layout_to
from gem_conformance.limits import Limits
from gem_conformance.task import Task, buffer_bytes, delta, first_parameters, wire_name
from gem_conformance.wire import TORN, Call, Event, Kind, Refusal, Wire
from gem_core.checksum import crc32c
from gem_core.errors import LayoutError
from gem_core.payload import PayloadFormat
from gem_core.wire_types import WireType, decode

__all__ = ["Commit", "NotSpokenError", "Play", "Pull"]

# commit.proto: payloads up to this travel whole, in the header's message.
WHOLE_LIMIT = 64 << 10
# parameter_server.proto: 2 MiB + 64 KiB.
MESSAGE_LIMIT = (2 << 20) + (64 << 10)
# The exit status of a candidate that does not speak what the task asks for.
NOT_SPOKEN = 3
# Calls that are served while the scenario waits for another one; a worker in a loop makes thousands.
_MOST_CALLS = 60
# Timers may fire a little early (JavaScript's do by a millisecond).
_EARLY = 0.05
# After a header that stands alone: so long, and so many times a candidate's own reaction time, for it to protest.
_PAUSE, _MOST_PAUSE, _REACTIONS = 0.25, 3.0, 3

_CODES = {
    "STALE_BASE": grpc.StatusCode.FAILED_PRECONDITION,
    "SEQUENCE_GAP": grpc.StatusCode.FAILED_PRECONDITION,
    "UNKNOWN_SESSION": grpc.StatusCode.FAILED_PRECONDITION,
    "EXPIRED_SESSION": grpc.StatusCode.FAILED_PRECONDITION,
    "UNKNOWN_INCARNATION": grpc.StatusCode.FAILED_PRECONDITION,
    "NOT_INITIALIZED": grpc.StatusCode.FAILED_PRECONDITION,
    "RUN_FINISHED": grpc.StatusCode.FAILED_PRECONDITION,
    "WAITING_ROOM": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "STALLED": grpc.StatusCode.ABORTED,
    "DRAINING": grpc.StatusCode.UNAVAILABLE,
    "BAD_VALUE": grpc.StatusCode.INVALID_ARGUMENT,
    "NOT_OFFERED": grpc.StatusCode.UNIMPLEMENTED,
}

_Found = TypeVar("_Found")
_Message = TypeVar("_Message", bound=Message)


class _StoppedError(Exception):
    """The candidate has ended, and may."""


class NotSpokenError(Exception):
    """The candidate says, by its exit status, that it does not speak what this scenario needs."""


@dataclass(slots=True)
class Commit:
    """A commit whose header was judged.

    Attributes:
        call: its stream.
        header: the header.
        first: the message that it came in.
        upload: what comes.
        base: the parameters that its delta must be of.
        is_repeat: it was applied already.
        identical_to: what its bytes must begin with, since an earlier attempt did.
    """

    call: Call
    header: commit_pb2.CommitHeader
    first: commit_pb2.CommitRequest
    upload: Upload
    base: Snapshot
    is_repeat: bool = False
    identical_to: bytes = b""


@dataclass(slots=True)
class Pull:
    """A pull that was judged: what is to be sent, and from where on."""

    call: Call
    request: parameters_pb2.PullRequest
    snapshot: Snapshot
    offset: int


@dataclass(slots=True)
class _Open:
    """An attempt that the candidate has to repeat, or does not know the outcome of."""

    sequence: int
    base: Clock
    payload: bytes
    is_unknown: bool


class Play:
    """One scenario's server and what it knows. The scenario's thread only.

    Args:
        task: what the candidate trains.
        wire: the connection; started.
        limits: how long to wait for what.
        worker_name: as the candidate must join.
        chunk_bytes: what Join tells.
        may_not_speak: whether the candidate may say that it does not speak what the scenario needs.
        by_hand: there is no process to watch: somebody starts the candidate.

    Attributes:
        central: the central variable and the run; scenarios change it.
        digest: told instead of the layout's own; None: none.
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
    ) -> None:
        self.central = Central(task)
        self.limits = limits
        self.digest: bytes | None = None
        self._task = task
        self._wire = wire
        self._worker_name = worker_name
        self._chunk_bytes = chunk_bytes
        self._may_not_speak = may_not_speak
        self._by_hand = by_hand
        self._session: Session | None = None
        self._lost_reason = "UNKNOWN_SESSION"
        self._open: _Open | None = None
        self._late: Commit | None = None
        self._not_before: dict[str, float] = {}
        self._sent = 0
        self._sends = 0
        self._packings = 0
        self._served = 0
        self._told_eta = self._eta_before = self.central.eta
        self._joined_at: float | None = None
        self._reaction = 0.0
        self._may_commit = True
        self._may_stop = False
        self._has_left = False
        self._exit: int | None = None

    # --- steps of a scenario

    @property
    def session(self) -> Session:
        """The candidate's session."""
        if self._session is None:
            raise AssertionError("nobody has joined yet")
        return self._session

    def join(self, refusal: Refusal | None = None) -> None:
        """Await a Join, and answer it; or refuse it."""
        event = self._wait(lambda one: one if _is(one, "Join") else None, "Join", Place.SESSIONS)
        if refusal is None:
            self._answer_join(event)
        else:
            self._refuse(_call(event), refusal)

    def initialise(self) -> None:
        """Await the first parameters, judge them, and take them."""
        event = self._wait(lambda one: one if _is(one, "Initialize") else None, "Initialize", Place.INITIALIZE)
        call = _call(event)
        request = self._initialize_header(event)
        payload = PayloadFormat(self._task.layout, WireType.FLOAT32, with_constants=True)
        upload = Upload(payload, self._chunk_bytes, "Initialize")
        while True:
            upload.take(
                request.chunk if request.HasField("chunk") else None,
                request.footer if request.HasField("footer") else None,
            )
            if upload.is_complete:
                break
            request = self._part(call, upload, parameters_pb2.InitializeRequest, Place.INITIALIZE)
            if request.HasField("header"):
                raise Fault(
                    FaultName.OUT_OF_ORDER,
                    "one header, then chunks and the footer",
                    "a second header",
                    Place.INITIALIZE,
                )
        layout = self._task.layout
        rest = buffer_bytes(layout.buffers + layout.constants, 0)
        theta = first_parameters(layout.parameter_count)
        data = bytes(upload.received)
        judge_values(payload, data, Expected(theta, rest), "the first parameters")
        self.central.theta = theta
        self.central.buffers = rest[: layout.buffer_bytes]
        self.central.constants = rest[layout.buffer_bytes :]
        self.central.clock = 1
        self.session.has_constants = True
        self._say_initialised(call, parameters_pb2.INITIALIZE_OUTCOME_ACCEPTED)

    def already_initialised(self) -> None:
        """Await an upload, and say that another one was faster."""
        event = self._wait(lambda one: one if _is(one, "Initialize") else None, "Initialize", Place.INITIALIZE)
        self._initialize_header(event)
        self.central.begin(self._others_theta())
        self._say_initialised(_call(event), parameters_pb2.INITIALIZE_OUTCOME_ALREADY_INITIALIZED)

    def initialised_by_others(self, *, narrow: bool = False) -> None:
        """Let there be parameters before the candidate joins; `narrow`: exact in all four floating-point types."""
        self.central.begin(-first_parameters(self._task.layout.parameter_count) if narrow else self._others_theta())

    def pull(self) -> Pull:
        """Await a pull; `send` answers it."""
        return self._wait(lambda one: self._judge_pull(one) if _is(one, "Pull") else None, "Pull", Place.PULL)

    def send(
        self,
        pull: Pull,
        *,
        tear_after: int | None = None,
        damaged: bool = False,
        pause: float = 0.0,
    ) -> None:
        """Answer a pull: all of it, or so many chunks; undamaged or not; with a pause behind each chunk."""
        payload = PayloadFormat(self._task.layout, self.session.parameter_wire_type, pull.request.with_constants)
        parts = self._parts(payload, pull.snapshot, pull.offset, damaged)
        if pull.request.with_layout:
            parts[0].parameters.layout.CopyFrom(layout_to(self._task.layout))
        is_first = not self._sends
        self._sends += 1
        messages = [_as_pull(one) for one in (parts if tear_after is not None or is_first else self._packed(parts))]
        if is_first and self.digest is None and not self._may_stop:
            pull.call.send(messages.pop(0).SerializeToString())
            self._await_protest(pull.call)
        if self._send_some(pull.call, messages, tear_after, pull.offset, pause):
            pull.call.end()
            pull.snapshot.is_delivered = not damaged
            self.session.has_constants |= pull.request.with_constants
            self._open = None

    def header(self) -> Commit:
        """Await the next commit, and judge its header."""
        while True:
            event = self._wait(lambda one: one if _is(one, "Commit") else None, "a commit's header", Place.COMMIT)
            commit = self._judge_header(event)
            if commit is not None:
                self._served = 0
                return commit

    def header_unless_it_stops(self, why: str, place: Place) -> Commit | None:
        """Await the next commit's header; None where the candidate ends instead, with another status than 0."""
        self._may_stop = True
        try:
            return self.new_header()
        except _StoppedError:
            if self._exit == 0:
                raise Fault(FaultName.WRONG_EXIT, f"a non-zero exit status: {why}", "0", place) from None
            return None
        finally:
            self._may_stop = False

    def quiet(self, commit: Commit, seconds: float) -> None:
        """Say nothing, and see that the candidate sends nothing on this stream meanwhile."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            event = self._next(left)
            if event is None:
                return
            if event.call is commit.call and event.kind is Kind.MESSAGE:
                raise Fault(
                    FaultName.DATA_BEFORE_PROCEED,
                    f"nothing behind the header of {commit.header.byte_count} bytes before proceed",
                    "another message",
                    Place.COMMIT,
                )
            self._serve(event)

    def proceed(self, commit: Commit) -> None:
        """Say that a staging buffer is reserved."""
        answer = commit_pb2.CommitResponse(proceed=commit_pb2.Proceed(sequence=commit.header.sequence))
        commit.call.send(answer.SerializeToString())

    def take(self, commit: Commit) -> None:
        """Take all of the payload, saying proceed where it is due, and judge every byte of it."""
        first = commit.first
        if not first.HasField("chunk") and not first.HasField("footer"):
            self.proceed(commit)
        else:
            self._take_whole(commit)
        self.take_rest(commit)

    def take_rest(self, commit: Commit) -> None:
        """Take what is left of the payload behind `take_part`, and judge every byte of it."""
        while not commit.upload.is_complete:
            self.take_part(commit)
        self._judge_payload(commit)

    def take_part(self, commit: Commit) -> None:
        """Take one further message of the payload."""
        upload = commit.upload
        message = self._part(commit.call, upload, commit_pb2.CommitRequest, Place.COMMIT)
        if message.HasField("header"):
            if upload.has_all_bytes:
                raise upload.no_footer("the next header")
            raise Fault(
                FaultName.OUT_OF_ORDER,
                "the chunks of one commit, and its footer, before the next header",
                f"a header behind {len(upload.received)} of {commit.header.byte_count} bytes",
                Place.COMMIT,
            )
        upload.take(
            message.chunk if message.HasField("chunk") else None, message.footer if message.HasField("footer") else None
        )

    def apply(self, commit: Commit) -> None:
        """Let others commit first, then this; the verdict is not told yet."""
        session = self.session
        staleness = self.central.others_commit()
        payload = PayloadFormat(self._task.layout, session.delta_wire_type)
        data = bytes(commit.upload.received)
        values = np.empty(self._task.layout.parameter_count, np.float32)
        if values.size:
            decode(session.delta_wire_type, memoryview(data)[: payload.parameter_bytes], values)
        self.central.apply(values, data[payload.parameter_bytes :])
        session.last_applied = commit.header.sequence
        session.content = Content(commit.header.wire_type, commit.header.byte_count, crc32c(data))
        session.stored = commit_pb2.Verdict(
            sequence=commit.header.sequence, version=self.central.version.to_wire(), staleness=staleness
        )
        session.stored.statistics.mean_pi = 1.0
        self._hold(self.central.snapshot())

    def reply(
        self, commit: Commit, *, tear_after: int | None = None, damaged: bool = False, pause: float = 0.0
    ) -> None:
        """Send the verdict and the parameters; all of it, or so many chunks (0: the verdict alone)."""
        session = self.session
        if session.stored is None:
            raise AssertionError("nothing was applied")
        if session.snapshot is None:
            self._hold(self.central.snapshot())
        snapshot = session.snapshot
        if snapshot is None:
            raise AssertionError("no snapshot")
        payload = PayloadFormat(self._task.layout, session.parameter_wire_type)
        verdict = commit_pb2.Verdict()
        verdict.CopyFrom(session.stored)
        verdict.duplicate = commit.is_repeat
        verdict.run_state = self.central.run_state
        verdict.next_eta = self.central.eta
        parts = self._parts(payload, snapshot, 0, damaged)
        parts.insert(0, commit_pb2.CommitResponse(verdict=verdict))
        self._tell_eta()
        messages = parts if tear_after is not None else self._packed(parts)
        snapshot.is_delivered = self._send_some(commit.call, messages, tear_after, 0, pause) and not damaged
        self._open = None  # the verdict was told

    def commit(self) -> Commit:
        """Await a new commit, take it, apply it and answer it; repeats are answered on the way."""
        commit = self.new_header()
        self.answer(commit)
        return commit

    def answer(self, commit: Commit) -> None:
        """Take a new commit, apply it and answer it."""
        self.take(commit)
        self.apply(commit)
        self.reply(commit)

    def new_header(self) -> Commit:
        """Await the header of a new commit; repeats are answered on the way."""
        while True:
            commit = self.header()
            if not commit.is_repeat:
                return commit
            self.repeat(commit)

    def repeat(self, commit: Commit) -> None:
        """Answer a repeat: the stored verdict, and what the session holds."""
        if commit.first.HasField("chunk") or commit.first.HasField("footer"):
            self._take_whole(commit)
            self._judge_checksum(commit)
        self.reply(commit)

    def tear(self, commit: Commit, *, applied_late: bool = False) -> None:
        """Break the stream, as a broken connection looks.

        `applied_late`: a complete commit is applied only when the candidate's next commit or pull has come.
        """
        self._late = commit if applied_late else None
        commit.call.end(TORN)
        self._leave_open(commit, is_unknown=commit.upload.is_complete)

    def refuse(self, commit: Commit, reason: str, retry_after: float | None = None) -> None:
        """End the stream with a refusal."""
        if reason in ("UNKNOWN_SESSION", "EXPIRED_SESSION"):
            self.forget_session(reason)
        elif reason == "STALE_BASE":
            self._lose_snapshot()
        elif retry_after is not None:
            self._leave_open(commit, is_unknown=False)
        elif reason not in ("SEQUENCE_GAP", "RUN_FINISHED", "UNKNOWN_INCARNATION"):
            self._may_commit = False
        self._refuse(commit.call, Refusal(_CODES[reason], reason, retry_after))

    def forget_session(self, reason: str) -> None:
        """From now on the server does not know the session; Join makes it known again."""
        self._lost_reason = reason
        self.session.is_known = False
        self._lose_snapshot()

    def restart(self, *, lost: int = 0) -> None:
        """Kill the server, and start another on the same port: a new incarnation.

        `lost`: so many of the candidate's commits are not in the checkpoint that it starts with.
        """
        self._wire.stop()
        self.central.incarnation += 1
        self.session.last_applied -= lost
        self.session.stored = None
        self._not_before.clear()
        self.forget_session("UNKNOWN_SESSION")
        self._wire.start()

    def finish(self, *, was_refused: bool = False) -> None:
        """The run is finished and the candidate was told: see it leave, and end with status 0.

        `was_refused`: it was told by the refusal of a commit.
        """
        status = self._see_it_end(leaving=True, was_refused=was_refused)
        if status not in (0, None):
            raise Fault(FaultName.WRONG_EXIT, "exit status 0 at the end of a run", f"exit status {status}", Place.END)
        if not self._has_left:
            raise Fault(FaultName.NO_LEAVE, "Leave when the run is finished", "the end of the process", Place.END)

    def last_commit(self) -> None:
        """Answer one more commit with a verdict that says that the run is finished; then `finish`."""
        commit = self.new_header()
        self.take(commit)
        self.apply(commit)
        self.central.run_state = run_pb2.RUN_STATE_FINISHED
        self.reply(commit)
        self.finish()

    def must_stop(self, why: str, place: Place) -> None:
        """The candidate must end with another status than 0 (and than that of what is not spoken)."""
        status = self._see_it_end(leaving=False)
        if status in (0, NOT_SPOKEN):
            raise Fault(FaultName.WRONG_EXIT, f"a non-zero exit status other than 3: {why}", f"{status}", place)

    # --- waiting

    def _next(self, seconds: float) -> Event | None:
        """The next event that still matters; None: nothing for so long."""
        until = time.monotonic() + seconds
        while True:
            try:
                event = self._wire.events.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return None
            if event.kind is Kind.EXITED:
                self._exit = event.status
                if event.status == NOT_SPOKEN and self._may_not_speak:
                    raise NotSpokenError
                return event
            if self._joined_at is not None and event.kind is Kind.MESSAGE:
                self._reaction = max(self._reaction, event.at - self._joined_at)
                self._joined_at = None
            if event.call is not None and event.call.is_over:
                continue
            if len(event.message) > MESSAGE_LIMIT:
                raise Fault(
                    FaultName.TOO_LARGE,
                    f"messages of at most {MESSAGE_LIMIT} bytes",
                    f"one of {len(event.message)} bytes",
                    Place.CONNECTIONS,
                )
            return event

    def _wait(self, pick: Callable[[Event], _Found | None], what: str, place: Place) -> _Found:
        """Serve what comes until `pick` finds what is awaited in an event."""
        while True:
            limit = self.limits.answer
            if self._session is None:
                what, place, limit = "Join", Place.SESSIONS, self.limits.start
            event = self._next(limit + max([0.0, *(one - time.monotonic() for one in self._not_before.values())]))
            if event is None:
                raise Fault(FaultName.SILENT, what, f"nothing for {limit:g} s", place)
            if event.kind is Kind.EXITED and self._may_stop:
                raise _StoppedError
            if event.kind is Kind.EXITED:
                raise Fault(FaultName.STOPPED, what, f"the end of the process, exit status {event.status}", place)
            if event.kind is Kind.MESSAGE:
                self._check_delay(event)
            found = pick(event)
            if found is not None:
                return found
            self._serve(event)

    def _serve(self, event: Event) -> None:
        """Answer what nobody awaits, as a correct server does."""
        call = event.call
        if event.kind is Kind.EXITED:
            raise Fault(
                FaultName.STOPPED,
                "a worker that goes on",
                f"the end of the process, exit status {event.status}",
                Place.CONFORMANCE,
            )
        if call is None:
            return
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
                if self._may_stop:
                    return
                raise Fault(FaultName.LEFT_EARLY, "a worker that stays until the run is finished", "Leave", Place.END)
            case "GetStatus":
                answer = status_pb2.GetStatusResponse()
                answer.status.run_state = self.central.run_state
                _answer(call, answer)
            case "Commit":
                self._judge_header(event)
                raise Fault(
                    FaultName.OUT_OF_ORDER, "one commit at a time, each after the other's footer", "another one",
                    Place.COMMIT,
                )  # fmt: skip
            case "WatchStatus" | "GetHistory":
                self._refuse(call, Refusal(_CODES["NOT_OFFERED"], "NOT_OFFERED"))
            case method:
                raise Fault(FaultName.UNEXPECTED_CALL, "Join, Pull, Commit, Heartbeat or Leave", method, Place.SESSIONS)

    def _count(self, call: Call) -> None:
        self._served += 1
        if self._served > _MOST_CALLS:
            raise Fault(
                FaultName.NO_PROGRESS,
                "a worker that goes on training",
                f"{_MOST_CALLS} calls without that, the last of them {call.method}",
                Place.RETRIES,
            )

    def _check_delay(self, event: Event) -> None:
        call = _call(event)
        allowed_at = self._not_before.pop(call.method, None)
        if allowed_at is not None and event.at < allowed_at - _EARLY:
            raise Fault(
                FaultName.IGNORED_RETRY_INFO,
                f"{call.method} no sooner than RetryInfo's delay allows",
                f"{call.method} {allowed_at - event.at:.2f} s too early",
                Place.REFUSALS,
            )

    def _see_it_end(self, *, leaving: bool, was_refused: bool = False) -> int | None:
        """Serve until the process has ended; its status, or None where nobody can tell.

        `leaving`: the run is finished, of which one refused commit may tell again, unless `was_refused`.
        """
        until = time.monotonic() + self.limits.answer + self.limits.exit
        while True:
            event = self._next(max(0.0, until - time.monotonic()))
            if event is None:
                if self._by_hand and self._has_left:
                    return None
                name = FaultName.NOT_ENDED if self._has_left or not leaving else FaultName.NO_LEAVE
                raise Fault(name, "Leave, and the end of the process", "nothing for so long", Place.END)
            if event.kind is Kind.EXITED:
                return event.status
            if event.kind is not Kind.MESSAGE:
                self._serve(event)
                continue
            call = _call(event)
            if call.method == "Leave":
                self._answer_leave(event)
                self._has_left = True
                if self._by_hand:
                    return None
                until = time.monotonic() + self.limits.exit
            elif call.method == "Commit" and leaving:
                if was_refused:
                    raise Fault(
                        FaultName.IGNORED_FINISHED, "Leave when the run is finished", "another commit", Place.END
                    )
                was_refused = True
                self._refuse(call, Refusal(_CODES["RUN_FINISHED"], "RUN_FINISHED"))
            else:
                self._check_delay(event)
                self._serve(event)

    def _await_protest(self, call: Call) -> None:
        """A header of a right digest was sent, and nothing else: whoever stops now has another digest in mind."""
        pause = min(_MOST_PAUSE, max(_PAUSE, _REACTIONS * self._reaction))
        until = time.monotonic() + pause
        while (left := until - time.monotonic()) > 0:
            event = self._next(left)
            if event is None:
                return
            ended = event.kind is Kind.EXITED or (event.kind is Kind.ENDED and event.call is call)
            if ended or _is(event, "Leave"):
                raise Fault(
                    FaultName.WRONG_DIGEST,
                    f"a worker that goes on with a header of the digest {self._task.layout.digest.hex()[:16]}..., "
                    "which is that of its layout",
                    "its end" if event.kind is Kind.EXITED else "the end of its pull",
                    Place.LAYOUTS,
                )
            self._serve(event)

    # --- Join, Heartbeat, Leave, Initialize

    def _answer_join(self, event: Event) -> None:
        call, request = _call(event), self._parse(event, session_pb2.JoinRequest)
        self._judge_join(request)
        delta_type = self._choose(request.delta_wire_types, self._task.delta_wire_types, "delta_wire_types")
        parameter_type = self._choose(
            request.parameter_wire_types, self._task.parameter_wire_types, "parameter_wire_types"
        )
        if self._session is None:
            self._session = Session(request.session_id, delta_type, parameter_type)
            self._told_eta = self._eta_before = self.central.eta
        elif request.session_id != self._session.session_id:
            raise Fault(
                FaultName.WRONG_SESSION,
                "Join again with the session id that the worker made at its start",
                "another session id",
                Place.SESSIONS,
            )
        self._session.is_known = True
        answer = session_pb2.JoinResponse(
            incarnation=self.central.incarnation,
            settings=run_pb2.RunSettings(
                rule="downpour",
                eta=self.central.eta,
                eta_schedule=run_pb2.ETA_SCHEDULE_CONSTANT,
                order=run_pb2.SERVING_ORDER_FIFO,
                min_workers=1,
                seed=1,
                local_steps=self.central.local_steps,
            ),
            run_state=self.central.run_state,
            delta_wire_type=int(delta_type),  # type: ignore[arg-type]
            parameter_wire_type=int(parameter_type),  # type: ignore[arg-type]
            chunk_bytes=self._chunk_bytes,
            last_applied_sequence=self._session.last_applied,
            has_parameters=self.central.theta is not None,
            next_eta=self.central.eta,
            session_timeout_seconds=120.0,
            server_version="gemps conformance",
        )
        self._tell_eta()
        _answer(call, answer)
        self._joined_at = time.monotonic()

    def _judge_join(self, request: session_pb2.JoinRequest) -> None:
        if len(request.session_id) != 16:
            raise Fault(
                FaultName.WRONG_JOIN, "a session id of 16 bytes", f"{len(request.session_id)} bytes", Place.SESSIONS
            )
        if request.worker_name != self._worker_name:
            raise Fault(
                FaultName.WRONG_JOIN,
                f"the worker name of GEMPS_WORKER_NAME, {self._worker_name!r}",
                f"{request.worker_name!r}",
                Place.CONFORMANCE,
            )
        for name in ("host_id", "agent", "device"):
            if len(getattr(request, name).encode()) > 256:
                raise Fault(FaultName.WRONG_JOIN, f"at most 256 bytes of {name}", "more", Place.SESSIONS)
        try:
            layout = layout_from(request.layout)
        except LayoutError as error:
            raise Fault(FaultName.WRONG_LAYOUT, "a legal layout", str(error), Place.LAYOUTS) from None
        difference = self._task.layout.first_difference(layout)
        if difference is not None:
            raise Fault(
                FaultName.WRONG_LAYOUT, "the task's layout", f"a layout that differs ({difference})", Place.LAYOUTS
            )

    def _choose(self, offered: object, wanted: tuple[WireType, ...], field: str) -> WireType:
        """The first of the task's types that is offered. Raises Fault for an offer of something else."""
        numbers = list(offered) or [int(WireType.FLOAT32)]  # type: ignore[call-overload]
        for one in wanted:
            if int(one) in numbers:
                return one
        names = ", ".join(wire_name(one) for one in wanted)
        raise Fault(
            FaultName.WRONG_OFFER,
            f"{field} as the task says ({names}), or exit status 3 from a worker that speaks none of them",
            f"an offer of {', '.join(transfer_pb2.WireType.Name(one) for one in numbers)}",
            Place.PAYLOADS,
        )

    def _answer_heartbeat(self, event: Event) -> None:
        call, request = _call(event), self._parse(event, session_pb2.HeartbeatRequest)
        self._check_session(request.session_id)
        if not self.session.is_known:
            self._refuse(call, Refusal(_CODES[self._lost_reason], self._lost_reason))
            return
        answer = session_pb2.HeartbeatResponse(
            incarnation=self.central.incarnation,
            run_state=self.central.run_state,
            last_applied_sequence=self.session.last_applied,
            next_eta=self.central.eta,
        )
        _answer(call, answer)

    def _answer_leave(self, event: Event) -> None:
        call, request = _call(event), self._parse(event, session_pb2.LeaveRequest)
        self._check_session(request.session_id)
        _answer(
            call,
            session_pb2.LeaveResponse(
                run_state=self.central.run_state, last_applied_sequence=self.session.last_applied
            ),
        )

    def _check_session(self, session_id: bytes) -> None:
        if self._session is None or session_id != self._session.session_id:
            raise Fault(FaultName.WRONG_SESSION, "the session id of Join in every call", "another one", Place.SESSIONS)

    def _initialize_header(self, event: Event) -> parameters_pb2.InitializeRequest:
        request = self._parse(event, parameters_pb2.InitializeRequest)
        payload = PayloadFormat(self._task.layout, WireType.FLOAT32, with_constants=True)
        if not request.HasField("header"):
            raise Fault(FaultName.OUT_OF_ORDER, "the header first", "a message without it", Place.INITIALIZE)
        self._check_session(request.header.session_id)
        if request.header.byte_count != payload.byte_count:
            raise Fault(
                FaultName.WRONG_SIZE,
                f"{payload.byte_count} bytes: PARAMETERs as FLOAT32, then BUFFERs, then CONSTANTs",
                f"a header of {request.header.byte_count} bytes",
                Place.INITIALIZE,
            )
        return request

    def _say_initialised(self, call: Call, outcome: parameters_pb2.InitializeOutcome) -> None:
        _answer(call, parameters_pb2.InitializeResponse(outcome=outcome, version=self.central.version.to_wire()))

    def _others_theta(self) -> NDArray[np.float32]:
        """Not what a candidate would have made; up to 9 bits of significand, so that bfloat16 has ties to round."""
        count = self._task.layout.parameter_count
        return (((np.arange(count) * 7 + 510) % 1021 - 510) / 512).astype(np.float32)

    # --- Pull

    def _judge_pull(self, event: Event) -> Pull | None:
        """The pull, or None where it was answered here: refused, or not modified."""
        call, request = _call(event), self._parse(event, parameters_pb2.PullRequest)
        self._check_session(request.session_id)
        session = self.session
        if not session.is_known:
            self._refuse(call, Refusal(_CODES[self._lost_reason], self._lost_reason))
            return None
        if self.central.theta is None:
            self._refuse(call, Refusal(_CODES["NOT_INITIALIZED"], "NOT_INITIALIZED"))
            return None
        if request.wire_type not in (0, int(session.parameter_wire_type)):
            raise Fault(
                FaultName.WRONG_WIRE_TYPE,
                f"{session.parameter_wire_type.name}, which Join settled, or nothing",
                f"a pull of wire type {request.wire_type}",
                Place.PULL,
            )
        self._apply_late()
        held = session.snapshot
        if request.HasField("resume_version"):
            if held is None or Clock.of(request.resume_version) != held.version:
                self._refuse(call, Refusal(_CODES["STALE_BASE"], "STALE_BASE"))
                return None
            self._judge_resume(request)
            return Pull(call, request, held, request.resume_offset)
        if request.resume_offset:
            raise Fault(FaultName.WRONG_RESUME, "resume_version beside resume_offset", "none", Place.PULL)
        known = Clock.of(request.known_version) if request.HasField("known_version") else None
        if held is not None and held.is_delivered and known == held.version == self.central.version:
            not_modified = parameters_pb2.NotModified(
                version=self.central.version.to_wire(), run_state=self.central.run_state
            )
            _answer(call, parameters_pb2.PullResponse(not_modified=not_modified))
            return None
        snapshot = self.central.snapshot()
        self._hold(snapshot)
        return Pull(call, request, snapshot, 0)

    def _judge_resume(self, request: parameters_pb2.PullRequest) -> None:
        payload = PayloadFormat(self._task.layout, self.session.parameter_wire_type, request.with_constants)
        offset = request.resume_offset
        if offset > self._sent or not payload.is_border(offset):
            raise Fault(
                FaultName.WRONG_RESUME,
                f"a resume_offset at a border within the {self._sent} bytes that were sent",
                f"{offset}",
                Place.PULL,
            )

    def _lose_snapshot(self) -> None:
        """The session has to pull; and meanwhile others commit, so that an old delta can be told from a new one."""
        session = self.session
        session.before = session.snapshot or session.before
        session.snapshot = None
        self._open = None
        if self.central.theta is not None:
            self.central.others_commit()

    def _hold(self, snapshot: Snapshot) -> None:
        session = self.session
        if session.snapshot is not None and session.snapshot.is_delivered:
            session.before = session.snapshot
        session.snapshot = snapshot

    def _parts(
        self, payload: PayloadFormat, snapshot: Snapshot, offset: int, damaged: bool
    ) -> list[commit_pb2.CommitResponse]:
        """Header, chunks and footer of parameters, a message each."""
        header = transfer_pb2.ParametersHeader(
            version=snapshot.version.to_wire(),
            wire_type=int(payload.wire_type),  # type: ignore[arg-type]
            byte_count=payload.byte_count,
            offset=offset,
            with_constants=payload.with_constants,
            layout_digest=self.digest if self.digest is not None else payload.layout.digest,
        )
        parts = [commit_pb2.CommitResponse(parameters=header)]
        splitter = snapshot.split(payload, self.central.constants, self._chunk_bytes, offset)
        for start, data in splitter:
            parts.append(commit_pb2.CommitResponse(chunk=transfer_pb2.Chunk(offset=start, data=bytes(data))))
        footer = transfer_pb2.Footer(
            byte_count=payload.byte_count, chunk_count=splitter.chunk_count, crc32c=splitter.crc32c
        )
        parts.append(commit_pb2.CommitResponse(footer=footer))
        if damaged:
            chunk = parts[1 + splitter.chunk_count // 2].chunk
            # The lowest bit of the first element: a value that differs, and is as legal as the right one.
            chunk.data = bytes([chunk.data[0] ^ 1]) + chunk.data[1:]
        return parts

    def _packed(self, parts: list[commit_pb2.CommitResponse]) -> list[commit_pb2.CommitResponse]:
        """The same parts: in turn each in a message of its own, and as many together as a message may hold."""
        self._packings += 1
        if self._packings % 2:
            return parts
        packed = [parts[0]]
        for part in parts[1:]:
            if part.HasField("chunk") and packed[-1].HasField("chunk"):
                packed.append(part)
            else:
                packed[-1].MergeFrom(part)
        return packed

    def _send_some(
        self, call: Call, messages: list[_Message], tear_after: int | None, offset: int, pause: float
    ) -> bool:
        """Send messages up to so many chunks, then tear the call; whether all of them were sent."""
        chunks, self._sent = 0, offset
        for message in messages:
            has_chunk = message.HasField("chunk")
            has_footer = message.HasField("footer")
            if tear_after is not None and ((has_chunk and chunks == tear_after) or has_footer):
                call.end(TORN)
                return False
            call.send(message.SerializeToString())
            if has_chunk:
                chunks += 1
                self._sent += len(message.chunk.data)  # type: ignore[attr-defined]
                if pause:
                    time.sleep(pause)
        return True

    # --- Commit

    def _judge_header(self, event: Event) -> Commit | None:
        """The commit, or None where it was refused here."""
        call, message = _call(event), self._parse(event, commit_pb2.CommitRequest)
        if not message.HasField("header"):
            raise Fault(FaultName.OUT_OF_ORDER, "a commit's header first", "a message without it", Place.COMMIT)
        header = message.header
        self._check_session(header.session_id)
        session = self.session
        if not self._may_commit:
            raise Fault(
                FaultName.RETRIED_WITHOUT_RETRY_INFO,
                "the end, after a refusal without RetryInfo that the table does not name",
                f"another commit, of sequence {header.sequence}",
                Place.REFUSALS,
            )
        if not session.is_known:
            self._count(call)
            self._refuse(call, Refusal(_CODES[self._lost_reason], self._lost_reason))
            return None
        if self.digest is not None:
            raise Fault(
                FaultName.WRONG_DIGEST,
                "no training on parameters whose header has the digest of another layout",
                f"a commit of sequence {header.sequence}",
                Place.LAYOUTS,
            )
        self._apply_late()
        base = Clock.of(header.base_version)
        is_repeat = session.stored is not None and header.sequence == session.last_applied
        payload = PayloadFormat(self._task.layout, session.delta_wire_type)
        self._judge_sequence(header, base, is_repeat=is_repeat)
        if header.wire_type != int(session.delta_wire_type):
            raise Fault(
                FaultName.WRONG_WIRE_TYPE,
                f"{session.delta_wire_type.name}, which Join settled",
                f"a header of wire type {header.wire_type}",
                Place.COMMIT,
            )
        if header.byte_count != payload.byte_count:
            raise Fault(
                FaultName.WRONG_SIZE,
                f"{payload.byte_count} bytes: PARAMETERs in {payload.wire_type.name}, then BUFFERs",
                f"a header of {header.byte_count} bytes",
                Place.PAYLOADS,
            )
        if header.HasField("shared_memory") or header.HasField("scale"):
            raise Fault(
                FaultName.MALFORMED, "no shared_memory and no scale in this wire type", "a header with them",
                Place.COMMIT,
            )  # fmt: skip
        upload = Upload(payload, max(self._chunk_bytes, WHOLE_LIMIT), f"commit {header.sequence}")
        if is_repeat:
            self._judge_repeat(header)
            return Commit(call, header, message, upload, self.central.snapshot(), is_repeat=True)
        snapshot = self._judge_base(base)
        commit = Commit(call, header, message, upload, snapshot)
        if self._open is not None and self._open.base == base and self._open.sequence == header.sequence:
            commit.identical_to = self._open.payload
            if self._open.is_unknown:
                self._judge_checksum_of_retry(header, crc32c(self._open.payload))
        return commit

    def _judge_sequence(self, header: commit_pb2.CommitHeader, base: Clock, *, is_repeat: bool) -> None:
        expected = self.session.last_applied + 1
        if is_repeat:
            return
        open_ = self._open
        if open_ is not None and open_.base == base and header.sequence != open_.sequence:
            raise Fault(
                FaultName.NEW_SEQUENCE_ON_RETRY,
                f"sequence {open_.sequence} again, whose outcome is not known or which is to be sent again",
                f"sequence {header.sequence} for a delta of the same base",
                Place.RETRIES,
            )
        if header.sequence != expected:
            raise Fault(
                FaultName.WRONG_SEQUENCE,
                f"sequence {expected}: the last applied one + 1",
                f"{header.sequence}",
                Place.COMMIT,
            )

    def _judge_base(self, base: Clock) -> Snapshot:
        session = self.session
        held = session.snapshot
        if held is None or base != held.version:
            wanted = f"the version that this session was given last, {held.version}" if held else "a Pull first"
            raise Fault(FaultName.STALE_BASE, wanted, f"base version {base}", Place.VERSIONS)
        if not held.is_delivered:
            raise Fault(
                FaultName.UNFINISHED_PARAMETERS,
                "a base whose parameters came with a footer that matches",
                f"base version {base}, of which it has not got that",
                Place.CHUNKS,
            )
        if self._task.layout.constant_bytes and not session.has_constants:
            raise Fault(
                FaultName.NO_CONSTANTS, "a first Pull with with_constants", "a commit without such a pull", Place.PULL
            )
        return held

    def _judge_repeat(self, header: commit_pb2.CommitHeader) -> None:
        content = self.session.content
        if content is None:
            raise AssertionError("nothing was applied")
        self._judge_checksum_of_retry(header, content.crc32c)

    def _judge_checksum_of_retry(self, header: commit_pb2.CommitHeader, expected: int) -> None:
        if not header.HasField("payload_crc32c"):
            raise Fault(
                FaultName.NO_CHECKSUM_IN_REPEAT,
                "payload_crc32c in the header of a repeat",
                f"a header of sequence {header.sequence} without it",
                Place.RETRIES,
            )
        if header.payload_crc32c != expected:
            raise Fault(
                FaultName.OTHER_BYTES_ON_RETRY,
                f"the identical bytes again, CRC32C {expected:#010x}",
                f"payload_crc32c {header.payload_crc32c:#010x} under the same sequence",
                Place.RETRIES,
            )

    def _take_whole(self, commit: Commit) -> None:
        first, upload = commit.first, commit.upload
        if commit.header.byte_count > WHOLE_LIMIT:
            raise Fault(
                FaultName.DATA_BEFORE_PROCEED,
                f"a header alone for {commit.header.byte_count} bytes, more than {WHOLE_LIMIT}",
                "a chunk or footer with it",
                Place.COMMIT,
            )
        upload.take(
            first.chunk if first.HasField("chunk") else None, first.footer if first.HasField("footer") else None
        )
        if upload.is_complete:
            return
        if upload.has_all_bytes:
            self._part(commit.call, upload, commit_pb2.CommitRequest, Place.COMMIT)  # or there is no footer at all
        raise Fault(
            FaultName.OUT_OF_ORDER,
            "header, chunk and footer in one message, or the header alone",
            "only a part of them in it",
            Place.COMMIT,
        )

    def _part(self, call: Call, upload: Upload, kind: type[_Message], place: Place) -> _Message:
        """The next message of an upload."""
        limit = self.limits.footer if upload.has_all_bytes else self.limits.answer
        until = time.monotonic() + limit
        while True:
            event = self._next(max(0.0, until - time.monotonic()))
            if event is None or event.kind is Kind.EXITED or (event.call is call and event.kind is not Kind.MESSAGE):
                came = f"nothing for {limit:g} s" if event is None else event.kind.value
                if upload.has_all_bytes:
                    raise upload.no_footer(came)
                name = FaultName.SILENT if event is None else FaultName.STOPPED
                raise Fault(name, f"further chunks behind {len(upload.received)} bytes", came, place)
            if event.call is call:
                return self._parse(event, kind)
            self._serve(event)

    def _judge_payload(self, commit: Commit) -> None:
        data, what = bytes(commit.upload.received), f"commit {commit.header.sequence}"
        self._judge_checksum(commit)
        if data[: len(commit.identical_to)] != commit.identical_to:
            raise Fault(
                FaultName.OTHER_BYTES_ON_RETRY,
                f"{what}: the identical bytes again",
                "other bytes under the same sequence and base",
                Place.RETRIES,
            )
        session = self.session
        seen = commit.base.seen(session.parameter_wire_type)
        otherwise: list[tuple[FaultName, str, str, NDArray[np.float32]]] = []
        if session.before is not None:
            text = "a delta of the parameters that its base version names", "one of those that the worker had before"
            stale = delta(session.before.seen(session.parameter_wire_type), self._told_eta)
            otherwise.append((FaultName.STALE_DELTA, *text, stale))
        if self._eta_before != self._told_eta:
            text = f"the learning rate {self._told_eta:g}, told last", f"{self._eta_before:g}, told before that"
            otherwise.append((FaultName.IGNORED_ETA, *text, delta(seen, self._eta_before)))
        payload = PayloadFormat(self._task.layout, session.delta_wire_type)
        if self.central.local_steps > 1:
            self._judge_local_steps(payload, data, seen, what)
            return
        expected = Expected(delta(seen, self._told_eta), commit.base.buffers, otherwise)
        judge_values(payload, data, expected, what)

    def _judge_local_steps(self, payload: PayloadFormat, data: bytes, seen: NDArray[np.float32], what: str) -> None:
        """-eta times the sum of the gradients at the worker's own steps; in which order it is summed is open."""
        eta = np.float32(self._told_eta)
        theta, total = seen.copy(), np.zeros_like(seen)
        for _ in range(self.central.local_steps):
            total += theta
            theta = theta - eta * theta
        came = np.frombuffer(data, "<f4", payload.layout.parameter_count)
        if not np.allclose(came, -eta * total, rtol=1e-4, atol=1e-6):
            raise Fault(
                FaultName.IGNORED_LOCAL_STEPS,
                f"{what}: the sum of {self.central.local_steps} local gradients, or the end of a worker that does not "
                "speak local steps",
                "another delta",
                Place.COMMIT,
            )

    def _judge_checksum(self, commit: Commit) -> None:
        header, crc = commit.header, commit.upload.crc32c
        if header.HasField("payload_crc32c") and header.payload_crc32c != crc:
            raise Fault(
                FaultName.WRONG_CHECKSUM,
                f"payload_crc32c {crc:#010x}, of the bytes that were sent",
                f"{header.payload_crc32c:#010x}",
                Place.CHUNKS,
            )

    def _apply_late(self) -> None:
        late, self._late = self._late, None
        if late is not None:
            self.apply(late)

    def _leave_open(self, commit: Commit, *, is_unknown: bool) -> None:
        data = bytes(commit.upload.received)
        self._open = _Open(commit.header.sequence, Clock.of(commit.header.base_version), data, is_unknown)

    # --- small things

    def _tell_eta(self) -> None:
        if self.central.eta != self._told_eta:
            self._eta_before, self._told_eta = self._told_eta, self.central.eta

    def _refuse(self, call: Call, refusal: Refusal) -> None:
        call.end(refusal)
        if refusal.retry_after is not None:
            self._not_before[call.method] = time.monotonic() + refusal.retry_after

    def _parse(self, event: Event, kind: type[_Message]) -> _Message:
        try:
            return kind.FromString(event.message)
        except DecodeError:
            raise Fault(
                FaultName.MALFORMED,
                f"a {kind.DESCRIPTOR.name}",
                f"{len(event.message)} bytes that are none",
                Place.CONNECTIONS,
            ) from None


def _is(event: Event, method: str) -> bool:
    return event.kind is Kind.MESSAGE and event.call is not None and event.call.method == method


def _call(event: Event) -> Call:
    if event.call is None:
        raise AssertionError("an event without a call")
    return event.call


def _answer(call: Call, message: Message) -> None:
    call.send(message.SerializeToString())
    call.end()


def _as_pull(part: commit_pb2.CommitResponse) -> parameters_pb2.PullResponse:
    message = parameters_pb2.PullResponse()
    if part.HasField("parameters"):
        message.header.CopyFrom(part.parameters)
    if part.HasField("chunk"):
        message.chunk.CopyFrom(part.chunk)
    if part.HasField("footer"):
        message.footer.CopyFrom(part.footer)
    return message
