"""The steps of scenarios: what the kit's server does, or what the worker must do next.

A scenario is a sequence of steps. The functions below that are decorated by `_step` do the work of a step, with the
`Play` of a server as the first argument. Called without it, by a scenario, they return the `Step` to be taken later:
`await_chunks(2)` is a step that awaits two chunks. `gemps conformance list --steps` and faults show its `text`.

A step that awaits something answers all other legal calls meanwhile (`answers.py`). Steps raise the exceptions that
`Step.take` describes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, Literal, ParamSpec, Unpack

from gemps.v1 import commit_pb2, parameters_pb2, run_pb2

from gem_conformance import answers
from gem_conformance.conversation import FINAL, NOT_SUPPORTED, NotSupportedError, answer, call_of, is_call, parse
from gem_conformance.faults import FaultError, FaultName, Place
from gem_conformance.grpc_server import Call, Event, EventKind, Refusal
from gem_conformance.judge_commit import judge_checksum, judge_payload, receive_whole
from gem_conformance.judge_values import Expected, Upload, judge_values
from gem_conformance.play import Play, StoppedError
from gem_conformance.refusals import BROKEN, Disturbance, disturbance_of, refusal_of
from gem_conformance.state import Attempt, decoded
from gem_conformance.task import buffer_bytes
from gem_core.payload import PayloadFormat
from gem_core.wire_types import WireType

__all__ = ["Step", "judge_end"]

_Arguments = ParamSpec("_Arguments")

# Refusals with CHECKSUM in a row. According to errors.proto a worker stops after more than five.
_CHECKSUM_REFUSALS = 8
# Seconds that the answer to Leave may take to reach a worker that was started by hand, before its server stops.
_LEAVE_SECONDS = 1.0
# What a worker may still commit after SIGTERM: this many commits, or any number within these seconds, because on a busy
# machine the thread that handles the signal may run late.
_LAST_COMMITS, _LAST_SECONDS = 5, 2.0


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a scenario.

    Attributes:
        text: its name and arguments, for lists and faults.
        take: does it with the `Play` of a server. Raises FaultError if the candidate breaks a rule, NotSupportedError
            if it lacks the optional part, and StoppedError if it ended and may.
    """

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
def others_trained(play: Play, *, narrow: bool = False) -> None:
    """Begin with a run that other workers have trained.

    With `narrow` all floating-point types hold its parameters exactly. Otherwise some lie exactly between two values of
    bfloat16, so that the rounding of such ties is checked.
    """
    play.central.load_trained(-play.first_theta() if narrow else play.others_theta())


@_step
def change_settings(play: Play, settings: run_pb2.RunSettings) -> None:
    """Set settings of the run, which the answer to Join contains."""
    play.central.settings.MergeFrom(settings)


@_step
def change_eta(play: Play, value: float) -> None:
    """Change the learning rate. The next answer to Join or to a commit tells the candidate."""
    play.central.eta = value


@_step
def finish_run(play: Play) -> None:
    """Finish the run. The next answer tells the candidate."""
    play.central.run_state = run_pb2.RUN_STATE_FINISHED


@_step
def others_commit(play: Play) -> None:
    """Pretend that other workers commit."""
    play.central.others_commit()


@_step
def change_digest(play: Play, *, of_join: bool) -> None:
    """Send another layout digest than this layout's in the headers of parameters.

    With `of_join` the answer to Join has the same one, as in a run whose first worker had other FROZEN values: the
    worker must accept it. Without, the parameters belong to another model: the worker must not train on them.
    """
    play.digest = bytes(reversed(play.digest))
    play.join_digest = play.digest if of_join else play.join_digest


@_step
def restart_server(play: Play, *, lost: int = 0, without_parameters: bool = False) -> None:
    """Kill the server, and start another incarnation at the same port, which lacks the last `lost` commits."""
    play.wait_for_other_servers()
    play.conversation.server.stop()
    play.disturbance = Disturbance("killed the server, and started another incarnation of it")
    central, session = play.central, play.session
    central.incarnation += 1
    session.last_applied -= lost
    session.verdict = None
    play.conversation.forget_delays()
    _lose_session(play, "UNKNOWN_SESSION")
    if without_parameters:
        central.theta = None
    play.conversation.server.start()


# --- first parameters and pulls


@_step
def refuse_join(play: Play, refusal: Refusal) -> None:
    """Await a Join, and end it with `refusal`, which may also be the status of a broken connection."""
    event = play.wait_for_call("Join", Place.SESSION)
    answers.refuse(play, call_of(event), "Join", refusal)


@_step
def break_joins(play: Play, count: int, least_seconds: float) -> None:
    """Break `count` Joins. The next one must come `least_seconds` or more after the first, because of back-off."""
    times = []
    for _ in range(count):
        event = play.wait_for_call("Join", Place.RULE)
        times.append(event.at)
        answers.refuse(play, call_of(event), "Join", BROKEN)
    event = play.wait_for_call("Join", Place.RULE)
    took = event.at - times[0]
    if took < least_seconds:
        expected = f"back-off: {least_seconds:g} s or more over {count} failures (0.1 s, doubling, times 0.5 to 1)"
        raise FaultError(FaultName.NO_BACK_OFF, expected, f"{took:.2f} s", Place.ERRORS)
    answers.answer_join(play, event)


@_step
def await_first_parameters(play: Play, *, again: bool = False) -> None:
    """Await an Initialize, judge the parameters in it, and accept them.

    With `again` the server has lost its parameters, so that the worker may upload any that it has trained.
    """
    event = play.wait_for_call("Initialize", Place.PARAMETERS)
    call, request = call_of(event), _initialize_header(play, event)
    payload = PayloadFormat(play.layout, WireType.FLOAT32)
    upload = Upload(payload, "Initialize")
    if request.chunk or request.HasField("footer"):
        upload.receive(request.chunk, request.footer if request.HasField("footer") else None)
    while not upload.is_complete:
        request = play.next_part(call, upload, parameters_pb2.InitializeRequest)
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
    play.wait_for_other_servers()
    play.central.initialise(theta, rest)
    _answer_initialize(play, call, parameters_pb2.INITIALIZE_OUTCOME_ACCEPTED)


@_step
def reject_first_parameters(play: Play) -> None:
    """Await an Initialize, and answer that another worker's upload came first."""
    event = play.wait_for_call("Initialize", Place.PARAMETERS)
    _initialize_header(play, event)
    play.central.load_trained(play.others_theta())
    _answer_initialize(play, call_of(event), parameters_pb2.INITIALIZE_OUTCOME_ALREADY_INITIALIZED)


@_step
def answer_pull(play: Play, **delivery: Unpack[answers.Delivery]) -> None:
    """Await a Pull, and answer it with parameters."""
    found = play.wait_for(
        lambda one: answers.judged_pull(play, one) if is_call(one, "Pull") else None, "Pull", Place.RULE
    )
    answers.send_pull(play, found, **delivery)


# --- commits


@_step
def await_header(play: Play) -> None:
    """Await the header of a new commit. Repeats of the commit that was applied last are answered."""
    _await_new_header(play)


@_step
def await_header_or_exit(play: Play) -> None:
    """Await the header of a new commit. The worker may also end with an error instead, which ends the scenario."""
    play.may_stop = True
    _await_new_header(play)
    play.may_stop = False


@_step
def expect_silence(play: Play, seconds: float) -> None:
    """Check for `seconds` that the worker sends nothing after the header, because it has no proceed yet."""
    commit = play.commit
    _receive_small_payload(play)
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        event = play.conversation.next(left)
        if event is None:
            return
        if event.call is commit.call and event.kind is EventKind.MESSAGE:
            raise FaultError(
                FaultName.DATA_BEFORE_PROCEED,
                f"nothing after the header of {commit.header.byte_count} bytes before proceed",
                "another message",
                Place.COMMIT,
            )
        play.serve(event)


@_step
def send_proceed(play: Play) -> None:
    """Send proceed, which lets the worker send its chunks."""
    _proceed(play)


@_step
def await_chunks(play: Play, count: int) -> None:
    """Await `count` chunks of the payload, after `send_proceed`."""
    for _ in range(count):
        _receive_part(play)


@_step
def await_payload(play: Play) -> None:
    """Await the whole payload, for which proceed is sent first if it needs that, and judge it."""
    _receive_payload(play)


@_step
def apply(play: Play, *, others_after: bool = False) -> None:
    """Apply the commit. With `others_after` others commit before the reply, which then has newer parameters."""
    answers.apply(play, play.commit, others_after=others_after)


@_step
def send_reply(play: Play, **delivery: Unpack[answers.Delivery]) -> None:
    """Send the verdict and the parameters that answer the commit."""
    answers.send_commit_reply(play, **delivery)


def apply_commit() -> Step:
    """Await a commit and apply it, without a reply."""
    return _sequence("apply commit", await_header(), await_payload(), apply())


def commit(*, next_eta: float | None = None, others_after: bool = False) -> Step:
    """Await a commit, apply it and reply; the reply has the learning rate `next_eta`, if it is given."""
    eta_step = () if next_eta is None else (change_eta(next_eta),)
    steps = (await_header(), await_payload(), apply(others_after=others_after), *eta_step, send_reply())
    return _sequence("commit", *steps)


def answer_commit() -> Step:
    """Await the payload of a commit whose header has arrived, apply the commit and reply."""
    return _sequence("answer commit", await_payload(), apply(), send_reply())


@_step
def read_payload_slowly(play: Play, seconds: float) -> None:
    """Await the payload, and read one chunk only every `seconds`, so that flow control stops the worker."""
    commit = play.commit
    commit.call.stop_reading()
    _proceed(play)
    while not commit.upload.has_all_bytes:
        time.sleep(seconds)
        commit.call.read_one()
        _receive_part(play)
    commit.call.resume_reading()
    _receive_rest(play)


def last_commit() -> Step:
    """Await a commit, and reply that the run is finished: the worker must leave and exit with 0."""
    return _sequence("last commit", apply_commit(), finish_run(), send_reply(), expect_leave())


# --- disturbances


@_step
def break_stream(play: Play, how: Refusal | None = BROKEN, *, applied_late: bool = False) -> None:
    """End the commit's stream without a reply, as a failure of the network does.

    Args:
        play: the server.
        how: the status of the stream; None for OK.
        applied_late: whether a complete commit is still applied, at the session's next call.
    """
    commit, name = play.commit, play.commit.upload.label
    is_applied = play.session.last_applied == commit.header.sequence
    whole = commit.upload.is_complete
    how_text = "broken" if how == BROKEN else f"ended with {how.code.name if how else 'OK'}"
    play.disturbance = Disturbance(f"{how_text} the stream of {name} after {len(commit.upload.received)} bytes")
    commit.call.end(how)
    if not is_applied:
        play.late_commit = commit if applied_late else None
        if not applied_late and play.group.count == 1:
            play.central.others_commit()
    _leave_open(play, is_whole=whole)


@_step
def refuse(
    play: Play, reason: str, *, retry_after: float | None = None, final: bool | None = None, alone: bool = False
) -> None:
    """Refuse the commit with `reason`; `retry_after` and `final` are those of `refusal_of`.

    All servers of a scenario refuse at the same time, except with `alone`, where the others do something else.
    """
    if not alone:
        play.wait_for_other_servers(play.commit.call)
    _refuse_commit(play, refusal_of(reason, retry_after, final=final))


@_step
def refuse_gap(play: Play, applied: int) -> None:
    """Refuse the commit with SEQUENCE_GAP, as if `applied` more commits of this session had been applied."""
    play.session.last_applied += applied
    play.session.verdict = None
    play.wait_for_other_servers(play.commit.call)
    _refuse_commit(play, refusal_of("SEQUENCE_GAP", last_applied=str(play.session.last_applied)))


@_step
def refuse_without_parameters(play: Play) -> None:
    """Refuse the commit with NOT_INITIALIZED, as a server that has lost its parameters does."""
    play.central.theta = None
    play.session.lose_snapshot()
    refusal = refusal_of("NOT_INITIALIZED")
    play.disturbance = disturbance_of(play.commit.upload.label, refusal)
    play.disturbance.expected = "Join with the same session id, Initialize, Pull, and a new delta"
    play.refuse(play.commit.call, refusal)


@_step
def refuse_checksums_until_exit(play: Play) -> None:
    """Refuse every commit with CHECKSUM. After more than five refusals in a row the worker must end."""
    play.may_stop = True
    for _ in range(_CHECKSUM_REFUSALS):
        _await_new_header(play)
        _receive_payload(play)
        _refuse_commit(play, refusal_of("CHECKSUM"))
    _await_new_header(play)
    expected = "the end of the process after more than five refusals with CHECKSUM in a row"
    came = f"another commit after {_CHECKSUM_REFUSALS} of them"
    raise FaultError(FaultName.RETRIED_TOO_OFTEN, expected, came, Place.ERRORS)


@_step
def refuse_hello(play: Play, refusal: Refusal) -> None:
    """Await a HELLO on the lane, and refuse it. The scenario is not supported if the worker commits over gRPC."""
    found = play.wait_for(
        lambda one: one if is_call(one, "Hello") or is_call(one, "Commit") else None, "a HELLO", Place.LANE
    )
    if is_call(found, "Commit"):
        raise NotSupportedError
    play.used.add("lane")
    play.disturbance = Disturbance("refused the lane", "a commit over gRPC", Place.LANE)
    play.refuse(call_of(found), refusal)


@_step
def interrupt(play: Play) -> None:
    """Send SIGTERM. The worker may finish its commit, must leave with a reason such as "interrupted", and end."""
    assert play.process is not None, "this scenario is not played by hand"
    play.process.send_sigterm()
    play.is_interrupted = play.may_stop = True
    expected = 'Leave with a reason such as "interrupted", and the end of the process'
    play.disturbance = Disturbance("sent SIGTERM", expected, Place.SESSION)
    commits, sent = 0, time.monotonic()
    try:
        while commits < _LAST_COMMITS or time.monotonic() - sent < _LAST_SECONDS:
            commit().take(play)
            commits += 1
    except StoppedError:
        if not play.has_left:
            came = f"exit status {play.conversation.exit_status}"
            raise FaultError(FaultName.NO_LEAVE, expected, came, Place.SESSION) from None
        if play.leave_reason in ("", "finished"):
            raise FaultError(FaultName.WRONG_LEAVE_REASON, expected, repr(play.leave_reason), Place.SESSION) from None
    else:
        raise FaultError(FaultName.IGNORED_SIGTERM, expected, f"{commits} commits", Place.SESSION)


@_step
def restart_worker(play: Play) -> None:
    """Kill the worker's process and start it again. It must join as a new session with the same name."""
    assert play.process is not None, "this scenario is not played by hand"
    play.process.terminate()
    play.conversation.forget_calls()
    play.earlier_processes.add(play.session.session_id)
    play.known_session = play.late_commit = None
    play.process.start()
    play.disturbance = Disturbance("killed and restarted the worker", "Join with a new session id", Place.SESSION)


# --- the end of the process


@_step
def expect_leave(play: Play) -> None:
    """Expect the worker to call Leave and exit with 0."""
    status = _see_it_end(play, leaving=True)
    if status not in (0, None):
        expected = "exit status 0 at the end of a run"
        raise FaultError(FaultName.WRONG_EXIT, expected, f"exit status {status}", Place.RUN)
    if not (play.has_left or play.shard.is_secondary):
        expected = "Leave when the run is finished"
        raise FaultError(FaultName.NO_LEAVE, expected, "the end of the process", Place.RUN)


@_step
def expect_error_exit(play: Play, why: str) -> None:
    """Expect the process to end with an error: status 2 after a final refusal, else any but 0, 2 and 3.

    `why` explains in faults why it must end.
    """
    judge_end(play, _see_it_end(play), why)


@_step
def require_use(play: Play, part: str) -> None:
    """Give the scenario up as not supported, unless the worker has used the optional part that it is about."""
    if part not in play.used:
        raise NotSupportedError


# --- several servers


@_step
def at_server(play: Play, which: Literal["primary", "last"], *steps: Step) -> None:
    """Take `steps` at one of two servers only."""
    if play.shard.is_last == (which == "last"):
        for one in steps:
            one.take(play)


# --- parts of steps


def _await_new_header(play: Play) -> None:
    while True:
        event = play.wait_for_call("Commit", Place.COMMIT, "a commit's header")
        found = answers.judged_header(play, event)
        if found is None:
            play.count_call(call_of(event))
            continue
        play.commit = found
        if not found.is_repeat:
            return
        play.count_call(found.call)
        if not found.is_header_alone:
            _require_whole(play)
            judge_checksum(found)
        answers.send_commit_reply(play)


def _proceed(play: Play) -> None:
    commit = play.commit
    _receive_small_payload(play)
    if not answers.is_early(play, commit):
        message = commit_pb2.CommitResponse(proceed=commit_pb2.Proceed(sequence=commit.header.sequence))
        commit.call.send(message.SerializeToString())


def _receive_payload(play: Play) -> None:
    if play.commit.is_header_alone:
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
    message = play.next_part(commit.call, upload, commit_pb2.CommitRequest)
    if message.HasField("header"):
        raise upload.missing_part("the next header")
    upload.receive(message.chunk, message.footer if message.HasField("footer") else None)


def _receive_small_payload(play: Play) -> None:
    if not play.commit.is_header_alone:
        receive_whole(play.commit)


def _require_whole(play: Play) -> None:
    commit = play.commit
    receive_whole(commit)
    if commit.upload.is_complete:
        return
    if commit.upload.has_all_bytes:
        play.next_part(commit.call, commit.upload, commit_pb2.CommitRequest)  # raises NO_FOOTER if none comes
    expected = "header, chunk and footer in one message, or the header alone"
    raise FaultError(FaultName.OUT_OF_ORDER, expected, "only a part of them in it", Place.COMMIT)


def _refuse_commit(play: Play, refusal: Refusal) -> None:
    """Refuse the commit, and change the server's state and what is expected of the worker as the reason requires."""
    commit, session, reason = play.commit, play.session, refusal.reason
    if refusal.retry_after is None and not play.shard.is_secondary:
        play.group.close_delta()
    if reason == "EXPIRED_SESSION":
        _lose_session(play, reason)
    elif reason == "STALE_BASE":
        session.lose_snapshot()
        play.central.others_commit()
    elif reason in ("BAD_VALUE", "CHECKSUM", "NEWER_CALL"):
        session.refused_payload = bytes(commit.upload.received) if reason == "BAD_VALUE" else None
        play.central.others_commit()
    elif refusal.retry_after is not None:
        _leave_open(play, is_whole=False)
    answers.refuse(play, commit.call, commit.upload.label, refusal)


def _leave_open(play: Play, *, is_whole: bool) -> None:
    commit = play.commit
    base = commit.header.base_version
    play.session.open_attempt = Attempt(commit.header.sequence, base, bytes(commit.upload.received), is_whole)
    play.session.early_proceed = None


def _lose_session(play: Play, reason: str) -> None:
    """Lose the session, so that calls are refused with `reason` until Join. Others commit, so that deltas change."""
    play.lost_reason = reason
    play.session.is_known = False
    if not play.shard.is_secondary:
        play.group.end_session()
    play.session.lose_snapshot()
    play.session.early_proceed = None
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


def _answer_initialize(play: Play, call: Call, outcome: parameters_pb2.InitializeOutcome) -> None:
    version = play.central.newest_version
    answer(call, parameters_pb2.InitializeResponse(outcome=outcome, version=version))


def _see_it_end(play: Play, *, leaving: bool = False) -> int | None:
    """Wait for the end of the process, and answer its calls meanwhile.

    Args:
        play: the server.
        leaving: whether the worker must call Leave before it ends. Otherwise it may end with an error.

    Returns:
        The exit status; None if the process was started by hand.

    Raises:
        FaultError: the process did not end within the time limit, or broke a rule.
    """
    play.may_stop = play.may_stop or not leaving
    if play.process is None and (play.shard.is_secondary or not leaving):
        return None
    until = time.monotonic() + play.limits.answer + play.limits.exit
    while True:
        event = play.next(max(0.0, until - time.monotonic()))
        if event is None:
            raise _not_ended(play, leaving=leaving)
        if event.kind is EventKind.EXITED:
            return event.status
        if not is_call(event, "Leave") or play.known_session is None:
            play.serve(event)
            continue
        answers.answer_leave(play, event)
        if play.process is None:
            play.conversation.next(_LEAVE_SECONDS)  # the answer must arrive before the server stops
            return None
        until = time.monotonic() + play.limits.exit


def _not_ended(play: Play, *, leaving: bool) -> FaultError:
    if play.has_left:
        came = f"Leave, then nothing for {play.limits.exit:g} s"
        return FaultError(FaultName.NOT_ENDED, "the end of the process after Leave", came, Place.RUN)
    came = f"no Leave, and no end within {play.limits.answer + play.limits.exit:g} s"
    if leaving:
        return FaultError(FaultName.NO_LEAVE, "Leave, and the end of the process", came, Place.RUN)
    expected = play.disturbance.expected if play.disturbance else "the end of the process"
    return FaultError(FaultName.NOT_ENDED, expected, came, Place.ERRORS)


def judge_end(play: Play, status: int | None, why: str) -> None:
    """Raise a FaultError unless an exit status is 2 after a final refusal, or else any but 0, 2 and 3.

    Args:
        play: the server.
        status: the exit status; None if the process was started by hand, so that it is unknown.
        why: why the process must end, for messages.
    """
    is_final = play.forbidden is not None and play.forbidden.name is FaultName.IGNORED_FINAL
    if status is not None and (status != FINAL if is_final else status in (0, FINAL, NOT_SUPPORTED)):
        expected = (
            f"exit status {FINAL} after a final refusal" if is_final else f"an exit status other than 0, 2 and 3: {why}"
        )
        raise FaultError(FaultName.WRONG_EXIT, expected, f"{status}", Place.ERRORS)
