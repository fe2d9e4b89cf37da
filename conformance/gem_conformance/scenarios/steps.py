"""What happens in a scenario, one step after the other: what the kit's server does, or what the worker must do next.

A step is made by a function below, and taken with the play. `Step.text` is what lists and failures call it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, Literal, ParamSpec

from gemps.v1 import commit_pb2, parameters_pb2, run_pb2

from gem_conformance import answers
from gem_conformance.faults import FaultError, FaultName, Place
from gem_conformance.judge_commit import judge_checksum, judge_payload, receive_whole
from gem_conformance.judge_values import Expected, Upload, judge_values
from gem_conformance.play import Play, StoppedError
from gem_conformance.refusals import TORN, Trouble, refusal, refused
from gem_conformance.state import Attempt, decoded
from gem_conformance.talk import FINAL, NOT_SPOKEN, NotSpokenError, answer, call_of, is_call, parse
from gem_conformance.task import buffer_bytes
from gem_conformance.wire import Call, Event, Kind, Refusal
from gem_core.payload import PayloadFormat
from gem_core.wire_types import WireType

__all__ = ["Step", "judge_end"]

_Arguments = ParamSpec("_Arguments")

# CHECKSUM refusals in a row, of which errors.proto allows five.
_CHECKSUM_REFUSALS = 8
# Seconds to wait for the end of a Leave.
_LAST_WORD = 1.0
# Commits that a worker may still make after SIGTERM.
_LAST_COMMITS = 5


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `take` raises FaultError, NotSpokenError."""

    text: str
    take: Callable[[Play], None]


def _step(function: Callable[Concatenate[Play, _Arguments], None]) -> Callable[_Arguments, Step]:
    @wraps(function)
    def make(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Step:
        shown = [_shown(one) for one in args] + [f"{name} {_shown(value)}" for name, value in kwargs.items()]
        text = " ".join([function.__name__.replace("_", " "), *([f"({', '.join(shown)})"] if shown else [])])
        return Step(text, lambda play: function(play, *args, **kwargs))

    return make


def _sequence(text: str, *steps: Step) -> Step:
    def take(play: Play) -> None:
        for one in steps:
            one.take(play)

    return Step(text, take)


def _shown(value: object) -> str:
    if isinstance(value, Refusal):
        return value.reason or value.code.name
    return value.text if isinstance(value, Step) else " ".join(str(value).split())


# --- the server's state


@_step
def trained(play: Play, *, narrow: bool = False) -> None:
    """Others have trained already. `narrow`: parameters that all floating-point types hold exactly."""
    play.central.become_trained(-play.first_theta() if narrow else play.others_theta())


@_step
def run_settings(play: Play, settings: run_pb2.RunSettings) -> None:
    """The run has these settings."""
    play.central.settings.MergeFrom(settings)


@_step
def eta(play: Play, value: float) -> None:
    """The learning rate changes; the candidate hears of it with the next answer."""
    play.central.eta = value


@_step
def finished_already(play: Play) -> None:
    """The run is finished."""
    play.central.run_state = run_pb2.RUN_STATE_FINISHED


@_step
def others_commit(play: Play) -> None:
    """Other workers commit."""
    play.central.others_commit()


@_step
def other_digest(play: Play, *, of_join: bool) -> None:
    """Parameters' headers have another digest than this layout's; so has Join if `of_join` (other FROZEN values)."""
    play.digest = bytes(reversed(play.digest))
    play.join_digest = play.digest if of_join else play.join_digest


@_step
def restart(play: Play, *, lost: int = 0, without_parameters: bool = False) -> None:
    """Kill the server; another incarnation comes at the same port, without the last `lost` commits."""
    play.meet()
    play.talk.wire.stop()
    play.trouble = Trouble("killed the server, and started another incarnation of it")
    central, session = play.central, play.session
    central.incarnation += 1
    session.last_applied -= lost
    session.stored = None
    play.talk.forget_delays()
    _lose_session(play, "UNKNOWN_SESSION")
    if without_parameters:
        central.theta = None
    play.talk.wire.start()


# --- first parameters and pulls


@_step
def join_refused(play: Play, said: Refusal) -> None:
    """Await a Join, and refuse or break it."""
    event = play.wait("Join", Place.SESSION)
    play.trouble = refused("Join", said)
    answers.forbid_after(play, said)
    play.refuse(call_of(event), said)


@_step
def joins_broken(play: Play, count: int, least_seconds: float) -> None:
    """Break `count` Joins; the one behind them must come after `least_seconds` or more."""
    events = []
    for _ in range(count):
        event = play.wait("Join", Place.RULE)
        events.append(event.at)
        play.trouble = refused("Join", TORN)
        play.refuse(call_of(event), TORN)
    event = play.wait("Join", Place.RULE)
    took = event.at - events[0]
    if took < least_seconds:
        expected = f"back-off: {least_seconds:g} s or more over {count} failures (0.1 s, doubling, times 0.5 to 1)"
        raise FaultError(FaultName.NO_BACK_OFF, expected, f"{took:.2f} s", Place.ERRORS)
    answers.answer_join(play, event)


@_step
def initialise(play: Play, *, again: bool = False) -> None:
    """Await the first parameters, and take them. `again`: the worker may also send those that it has trained."""
    event = play.wait("Initialize", Place.PARAMETERS)
    call, request = call_of(event), _initialize_header(play, event)
    payload = PayloadFormat(play.layout, WireType.FLOAT32)
    upload = Upload(payload, "Initialize")
    if request.chunk or request.HasField("footer"):
        upload.receive(request.chunk, request.footer if request.HasField("footer") else None)
    while not upload.is_complete:
        request = play.part(call, upload, parameters_pb2.InitializeRequest)
        if request.HasField("header"):
            raise FaultError(FaultName.OUT_OF_ORDER, "one header", "a second one", Place.PARAMETERS)
        upload.receive(request.chunk, request.footer if request.HasField("footer") else None)
    data, theta = bytes(upload.received), play.first_theta()
    if again:
        theta = decoded(WireType.FLOAT32, data[: payload.parameter_bytes], theta.size)
        rest = data[payload.parameter_bytes :]
    else:
        rest = buffer_bytes(play.layout.buffers, 0)
        judge_values(payload, data, Expected(theta, rest, Place.CONFORMANCE), "the first parameters")
    play.meet()
    play.central.initialise(theta, rest)
    _say_initialised(play, call, parameters_pb2.INITIALIZE_OUTCOME_ACCEPTED)


@_step
def already_initialised(play: Play) -> None:
    """Await an upload, whose place another worker's parameters have taken."""
    event = play.wait("Initialize", Place.PARAMETERS)
    _initialize_header(play, event)
    play.central.become_trained(play.others_theta())
    _say_initialised(play, call_of(event), parameters_pb2.INITIALIZE_OUTCOME_ALREADY_INITIALIZED)


@_step
def pull(play: Play, *, tear_after: int | None = None, torn: Refusal | None = TORN, damaged: bool = False) -> None:
    """Await a pull, and answer it: whole, damaged, or ended behind `tear_after` chunks with `torn` (None: OK)."""
    found = play.wait_for(
        lambda one: answers.judged_pull(play, one) if is_call(one, "Pull") else None, "Pull", Place.RULE
    )
    answers.send_pull(play, found, tear_after=tear_after, torn=torn, damaged=damaged)


# --- commits


@_step
def header(play: Play) -> None:
    """Await a new commit's header; answer repeats of commits that were applied."""
    _await_header(play)


@_step
def header_or_stop(play: Play) -> None:
    """As `header`, or the end of the process with an error, which ends the scenario."""
    play.may_stop = True
    _await_header(play)
    play.may_stop = False


@_step
def quiet(play: Play, seconds: float) -> None:
    """Watch that nothing comes behind the header for so long."""
    commit = play.commit
    _require_alone(play)
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        event = play.talk.next(left)
        if event is None:
            return
        if event.call is commit.call and event.kind is Kind.MESSAGE:
            raise FaultError(
                FaultName.DATA_BEFORE_PROCEED,
                f"nothing behind the header of {commit.header.byte_count} bytes before proceed",
                "another message",
                Place.COMMIT,
            )
        play.serve(event)


@_step
def proceed(play: Play) -> None:
    """Let the worker send its chunks."""
    _proceed(play)


@_step
def chunks(play: Play, count: int) -> None:
    """Await so many chunks."""
    for _ in range(count):
        _receive_part(play)


@_step
def payload(play: Play) -> None:
    """Await the whole payload, and judge it."""
    _receive_payload(play)


@_step
def apply(play: Play, *, others_behind: bool = False) -> None:
    """Apply the commit. `others_behind`: others commit before the reply, which has their parameters and BUFFERs."""
    answers.apply(play, play.commit, others_behind=others_behind)


@_step
def reply(
    play: Play, *, tear_after: int | None = None, torn: Refusal | None = TORN, damaged: bool = False, pause: float = 0.0
) -> None:
    """Send verdict and parameters, as `pull` does. `pause`: seconds after each chunk."""
    answers.commit_reply(play, tear_after=tear_after, torn=torn, damaged=damaged, pause=pause)


def commit(*, next_eta: float | None = None, others_behind: bool = False) -> Step:
    """Await a commit, apply it and answer."""
    with_eta = () if next_eta is None else (eta(next_eta),)
    return _sequence("commit", header(), payload(), apply(others_behind=others_behind), *with_eta, reply())


def answer_commit() -> Step:
    """Take the payload behind the header, apply the commit and answer."""
    return _sequence("answer commit", payload(), apply(), reply())


@_step
def slow_payload(play: Play, seconds: float) -> None:
    """Read the chunks slowly: so many seconds for each."""
    commit = play.commit
    commit.call.stop_reading()
    _proceed(play)
    while not commit.upload.has_all_bytes:
        time.sleep(seconds)
        commit.call.read_one()
        _receive_part(play)
    commit.call.go_on_reading()
    _receive_rest(play)


def last_commit() -> Step:
    """Await a commit; its verdict says that the run is finished: the worker leaves and exits with 0."""
    return _sequence("last commit", header(), payload(), apply(), finished_already(), reply(), finish())


# --- disturbances


@_step
def tear(play: Play, how: Refusal | None = TORN, *, applied_late: bool = False) -> None:
    """End the commit's stream, as gRPC or networks do; None: with OK. `applied_late`: apply it at the next call."""
    commit, name = play.commit, play.commit.upload.what
    is_applied = play.session.last_applied == commit.header.sequence
    whole = commit.upload.is_complete
    how_text = "broken" if how == TORN else f"ended with {how.code.name if how else 'OK'}"
    play.trouble = Trouble(f"{how_text} the stream of {name} behind {len(commit.upload.received)} bytes")
    commit.call.end(how)
    if not is_applied:
        play.late = commit if applied_late else None
        if not applied_late and play.group.count == 1:
            play.central.others_commit()
    _leave_open(play, is_whole=whole)


@_step
def refuse(
    play: Play, reason: str, *, retry_after: float | None = None, final: bool | None = None, alone: bool = False
) -> None:
    """Refuse the commit. `final`, `retry_after`: what the details say. `alone`: other servers do something else."""
    if not alone:
        play.meet(play.commit.call)
    _refuse_commit(play, refusal(reason, retry_after, final=final))


@_step
def refuse_gap(play: Play, applied: int) -> None:
    """Refuse the commit as SEQUENCE_GAP: the server counts `applied` more commits of this session."""
    play.session.last_applied += applied
    play.session.stored = None
    play.meet(play.commit.call)
    _refuse_commit(play, refusal("SEQUENCE_GAP", last_applied=str(play.session.last_applied)))


@_step
def refuse_uninitialised(play: Play) -> None:
    """Refuse the commit: the server has no parameters any more."""
    play.central.theta = None
    play.session.lose_snapshot()
    said = refusal("NOT_INITIALIZED")
    play.trouble = refused(play.commit.upload.what, said)
    play.trouble.expected = "Join with the same session id, Initialize, Pull, and a new delta"
    play.refuse(play.commit.call, said)


@_step
def refuse_checksums_until_it_stops(play: Play) -> None:
    """Refuse every commit as damaged: after more than five in a row the worker stops."""
    play.may_stop = True
    for _ in range(_CHECKSUM_REFUSALS):
        _await_header(play)
        _receive_payload(play)
        _refuse_commit(play, refusal("CHECKSUM"))
    _await_header(play)
    expected = "the end of the process after more than five refusals with CHECKSUM in a row"
    came = f"another commit after {_CHECKSUM_REFUSALS} of them"
    raise FaultError(FaultName.RETRIED_TOO_OFTEN, expected, came, Place.ERRORS)


@_step
def hello_refused(play: Play, said: Refusal) -> None:
    """Await a HELLO on the lane, and refuse it."""
    found = play.wait_for(
        lambda one: one if is_call(one, "Hello") or is_call(one, "Commit") else None, "a HELLO", Place.LANE
    )
    if is_call(found, "Commit"):
        raise NotSpokenError
    play.used.add("lane")
    play.trouble = Trouble("refused the lane", "a commit over gRPC", Place.LANE)
    play.refuse(call_of(found), said)


@_step
def interrupt(play: Play) -> None:
    """Send SIGTERM: the worker finishes what it began, leaves as "interrupted" or the like, and ends."""
    assert play.process is not None, "this scenario is not played by hand"
    play.process.send_sigterm()
    play.is_interrupted = play.may_stop = True
    expected = 'Leave with a reason such as "interrupted", and the end of the process'
    play.trouble = Trouble("sent SIGTERM", expected, Place.SESSION)
    try:
        for _ in range(_LAST_COMMITS):
            commit().take(play)
    except StoppedError:
        if not play.has_left:
            came = f"exit status {play.talk.exit_status}"
            raise FaultError(FaultName.NO_LEAVE, expected, came, Place.SESSION) from None
        if play.leave_reason in ("", "finished"):
            raise FaultError(FaultName.WRONG_LEAVE_REASON, expected, repr(play.leave_reason), Place.SESSION) from None
    else:
        raise FaultError(FaultName.IGNORED_SIGTERM, expected, f"{_LAST_COMMITS} commits", Place.SESSION)


@_step
def restart_worker(play: Play) -> None:
    """Kill the worker's process, and start it again: a new session of the same name."""
    assert play.process is not None, "this scenario is not played by hand"
    play.process.terminate()
    play.talk.forget_calls()
    play.earlier_processes.add(play.session.session_id)
    play.known_session = play.late = None
    play.process.start()
    play.trouble = Trouble("killed the worker, and started it again", "Join with a new session id", Place.SESSION)


# --- ends


@_step
def finish(play: Play) -> None:
    """Expect Leave, and exit status 0."""
    status = _see_it_end(play, leaving=True)
    if status not in (0, None):
        expected = "exit status 0 at the end of a run"
        raise FaultError(FaultName.WRONG_EXIT, expected, f"exit status {status}", Place.RUN)
    if not (play.has_left or play.shard.is_secondary):
        expected = "Leave when the run is finished"
        raise FaultError(FaultName.NO_LEAVE, expected, "the end of the process", Place.RUN)


@_step
def must_stop(play: Play, why: str) -> None:
    """Expect the end of the process: with status 2 after a final refusal, else with one that says error."""
    judge_end(play, _see_it_end(play), why)


@_step
def must_have_used(play: Play, part: str) -> None:
    """Without this the scenario shows nothing: an optional part was not used."""
    if part not in play.used:
        raise NotSpokenError


# --- several servers


@_step
def at(play: Play, which: Literal["primary", "last"], *steps: Step) -> None:
    """Steps of one of two servers alone."""
    if play.shard.is_last == (which == "last"):
        for one in steps:
            one.take(play)


# --- what steps are made of


def _await_header(play: Play) -> None:
    while True:
        event = play.wait("Commit", Place.COMMIT, "a commit's header")
        found = answers.judged_header(play, event)
        if found is None:
            play.count(call_of(event))
            continue
        play.commit = found
        if not found.is_repeat:
            return
        play.count(found.call)
        if not found.is_alone:
            _require_whole(play)
            judge_checksum(found)
        answers.commit_reply(play)


def _proceed(play: Play) -> None:
    commit = play.commit
    _require_alone(play)
    if not answers.is_early(play, commit):
        said = commit_pb2.CommitResponse(proceed=commit_pb2.Proceed(sequence=commit.header.sequence))
        commit.call.send(said.SerializeToString())


def _receive_payload(play: Play) -> None:
    if play.commit.is_alone:
        _proceed(play)
    else:
        _require_whole(play)
    _receive_rest(play)


def _receive_rest(play: Play) -> None:
    while not play.commit.upload.is_complete:
        _receive_part(play)
    judge_payload(play.commit, play.session, play.central.settings)


def _receive_part(play: Play) -> None:
    commit, upload = play.commit, play.commit.upload
    message = play.part(commit.call, upload, commit_pb2.CommitRequest)
    if message.HasField("header"):
        raise upload.ended("the next header")
    upload.receive(message.chunk, message.footer if message.HasField("footer") else None)


def _require_alone(play: Play) -> None:
    if not play.commit.is_alone:
        receive_whole(play.commit)


def _require_whole(play: Play) -> None:
    commit = play.commit
    receive_whole(commit)
    if commit.upload.is_complete:
        return
    if commit.upload.has_all_bytes:
        play.part(commit.call, commit.upload, commit_pb2.CommitRequest)  # raises if no footer comes
    expected = "header, chunk and footer in one message, or the header alone"
    raise FaultError(FaultName.OUT_OF_ORDER, expected, "only a part of them in it", Place.COMMIT)


def _refuse_commit(play: Play, said: Refusal) -> None:
    """Refuse the commit, and let the server's state and what is expected follow."""
    commit, session, reason = play.commit, play.session, said.reason
    if said.retry_after is None and not play.shard.is_secondary:
        play.group.settle()
    play.trouble = refused(commit.upload.what, said)
    answers.forbid_after(play, said)
    if reason == "EXPIRED_SESSION":
        _lose_session(play, reason)
    elif reason == "STALE_BASE":
        session.lose_snapshot()
        play.central.others_commit()
    elif reason in ("BAD_VALUE", "CHECKSUM", "NEWER_CALL"):
        session.refused = bytes(commit.upload.received) if reason == "BAD_VALUE" else None
        play.central.others_commit()
    elif said.retry_after is not None:
        _leave_open(play, is_whole=False)
    play.refuse(commit.call, said)


def _leave_open(play: Play, *, is_whole: bool) -> None:
    commit = play.commit
    base = commit.header.base_version
    play.session.open = Attempt(commit.header.sequence, base, bytes(commit.upload.received), is_whole)
    play.session.early = None


def _lose_session(play: Play, reason: str) -> None:
    """Others commit, so that old and new deltas differ."""
    play.lost_reason = reason
    play.session.is_known = False
    if not play.shard.is_secondary:
        play.group.end_session()
    play.session.lose_snapshot()
    play.session.early = None
    play.central.others_commit()


def _initialize_header(play: Play, event: Event) -> parameters_pb2.InitializeRequest:
    request = parse(event, parameters_pb2.InitializeRequest)
    expected = PayloadFormat(play.layout, WireType.FLOAT32).byte_count
    if not request.HasField("header"):
        came = "a message without it"
        raise FaultError(FaultName.OUT_OF_ORDER, "the header first", came, Place.PARAMETERS)
    answers.check_session(play, request.header.session_id)
    if request.header.byte_count != expected:
        wanted = f"{expected} bytes: PARAMETERs as FLOAT32, then BUFFERs"
        came = f"a header of {request.header.byte_count} bytes"
        raise FaultError(FaultName.WRONG_SIZE, wanted, came, Place.PARAMETERS)
    return request


def _say_initialised(play: Play, call: Call, outcome: parameters_pb2.InitializeOutcome) -> None:
    version = play.central.newest_version
    answer(call, parameters_pb2.InitializeResponse(outcome=outcome, version=version))


def _see_it_end(play: Play, *, leaving: bool = False) -> int | None:
    """Return the exit status; None by hand. Raises FaultError if the process does not end."""
    play.may_stop = play.may_stop or not leaving
    if play.process is None and (play.shard.is_secondary or not leaving):
        return None
    until = time.monotonic() + play.limits.answer + play.limits.exit
    while True:
        event = play.next(max(0.0, until - time.monotonic()))
        if event is None:
            raise _not_ended(play, leaving=leaving)
        if event.kind is Kind.EXITED:
            return event.status
        if not is_call(event, "Leave") or play.known_session is None:
            play.serve(event)
            continue
        answers.answer_leave(play, event)
        if play.process is None:
            play.talk.next(_LAST_WORD)  # the answer arrives before the server ends
            return None
        until = time.monotonic() + play.limits.exit


def _not_ended(play: Play, *, leaving: bool) -> FaultError:
    if play.has_left:
        came = f"Leave, then nothing for {play.limits.exit:g} s"
        return FaultError(FaultName.NOT_ENDED, "the end of the process behind Leave", came, Place.RUN)
    came = f"no Leave, and no end within {play.limits.answer + play.limits.exit:g} s"
    if leaving:
        return FaultError(FaultName.NO_LEAVE, "Leave, and the end of the process", came, Place.RUN)
    expected = play.trouble.expected if play.trouble else "the end of the process"
    return FaultError(FaultName.NOT_ENDED, expected, came, Place.ERRORS)


def judge_end(play: Play, status: int | None, why: str) -> None:
    """Raise a FaultError unless the status is that of an error; None: the process was started by hand."""
    is_final = play.forbidden is not None and play.forbidden.name is FaultName.IGNORED_FINAL
    if status is not None and (status != FINAL if is_final else status in (0, FINAL, NOT_SPOKEN)):
        expected = (
            f"exit status {FINAL} after a final refusal" if is_final else f"an exit status other than 0, 2 and 3: {why}"
        )
        raise FaultError(FaultName.WRONG_EXIT, expected, f"{status}", Place.ERRORS)
