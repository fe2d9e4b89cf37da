"""What a correct server answers: to each call that no step of a scenario awaits, and in every transfer of parameters.

Steps use the same functions, and pass how to disturb an answer: break it after some chunks, or damage its bytes. Each
function records in the `Play` what the candidate was sent, because that decides what it must do next.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypedDict, Unpack

from gemps.v1 import commit_pb2, lane_pb2, parameters_pb2, session_pb2, status_pb2, transfer_pb2

from gem_conformance.conversation import NotSupportedError, answer, call_of, parse
from gem_conformance.faults import FaultError, FaultName, Place
from gem_conformance.grpc_server import Call, Event, EventKind, Refusal
from gem_conformance.judge_commit import Commit, buffers_after, judge_header, values_of
from gem_conformance.judge_join import joined_session
from gem_conformance.judge_pull import Pull, judge_pull
from gem_conformance.refusals import BROKEN, Disturbance, Forbidden, disturbance_of, refusal_of
from gem_conformance.state import Snapshot, decoded
from gem_core.checksum import crc32c
from gem_core.wire_types import BLOCKS, WireType, encode

if TYPE_CHECKING:
    from gem_conformance.lane import LaneCall
    from gem_conformance.play import Play

__all__ = ["Delivery", "answer_join", "answer_leave", "apply", "check_session", "is_early"]
__all__ += ["judged_header", "judged_pull", "refuse", "send_commit_reply", "send_pull", "serve"]

_WORKER_CALLS = frozenset({"Join", "Initialize", "Pull", "Commit", "Heartbeat"})


def serve(play: Play, event: Event) -> None:
    """Answer an event of a call as a correct server does.

    Raises:
        FaultError: a worker must not make this call at this point, or the message breaks a rule.
        NotSupportedError: the candidate does not announce the optional feature that the scenario is about.
    """
    call = call_of(event)
    if event.kind is EventKind.HALF_CLOSED and call.method == "Commit":
        call.end()
    if event.kind is not EventKind.MESSAGE:
        return
    match call.method:
        case "Join":
            answer_join(play, event)
        case "Pull":
            pull = judged_pull(play, event)
            if pull is not None:
                send_pull(play, pull)
        case "Heartbeat":
            _answer_heartbeat(play, event)
        case "Leave":
            _answer_early_leave(play, event)
        case "Hello":
            _answer_hello(play, event)
        case "GetStatus":
            answer(call, status_pb2.GetStatusResponse(status=status_pb2.RunStatus(run_state=play.central.run_state)))
        case "Commit":
            # A fault in the header itself takes precedence over the fault of committing at this point.
            commit = judged_header(play, event)
            if commit is not None and play.central.is_finished:
                refuse(play, call, commit.upload.label, refusal_of("RUN_FINISHED"))
            elif commit is not None:
                expected = "one commit at a time, each after the other's reply"
                raise FaultError(FaultName.OUT_OF_ORDER, expected, "another one", Place.COMMIT)
        case "WatchStatus" | "GetHistory":
            play.refuse(call, refusal_of("NOT_OFFERED"))
        case method:
            expected = "Join, Pull, Commit, Heartbeat or Leave"
            raise FaultError(FaultName.UNEXPECTED_CALL, expected, method, Place.RULE)


def answer_join(play: Play, event: Event) -> None:
    """Judge and answer a Join. It is refused with FEATURE if the candidate lacks a feature that the run needs."""
    request = play.group.judge_join(play.shard, parse(event, session_pb2.JoinRequest))
    missing = [one for one in play.scenario.needs if one not in request.features]
    if missing:
        _refuse_feature(play, call_of(event), missing)
        return
    session = joined_session(
        request,
        play.scenario.task,
        play.scenario.worker_name,
        play.known_session,
        play.earlier_processes,
        play.central.eta,
    )
    if any(one not in session.features for one in play.scenario.uses if one != "lane"):
        raise NotSupportedError
    play.known_session = session
    session.is_known = True
    session.early_proceed = None
    _close_open_commit(play)
    session.record_eta(play.central.eta)
    answer(call_of(event), _join_response(play))
    if play.central.is_finished:
        _note_finished(play, "Join's answer")


def _refuse_feature(play: Play, call: Call, missing: list[str]) -> None:
    refuse(play, call, "Join", refusal_of("FEATURE", missing=", ".join(missing)))
    play.may_stop = True
    if play.process is None:
        raise NotSupportedError


def refuse(play: Play, call: Call, what: str, refusal: Refusal) -> None:
    """Refuse a call, record this as the disturbance, and record which calls are a fault from now on.

    Args:
        play: the server.
        call: the call.
        what: a name of the call or commit for messages, such as "Join" or "commit 3".
        refusal: how to end it; also the status of a broken connection.
    """
    play.disturbance = disturbance = disturbance_of(what, refusal)
    if refusal.is_final:
        expected = "the end of the process with status 2, after a final refusal"
        play.forbidden = Forbidden(_WORKER_CALLS, FaultName.IGNORED_FINAL, expected, Place.ERRORS)
    elif refusal.reason == "RUN_FINISHED":
        name = FaultName.IGNORED_FINISHED
        play.forbidden = Forbidden(frozenset({"Commit"}), name, disturbance.expected, Place.ERRORS)
    elif refusal.retry_after is None and disturbance.place is Place.ERRORS:
        name = FaultName.RETRIED_WITHOUT_RETRY_INFO
        play.forbidden = Forbidden(frozenset({"Commit", "Join"}), name, disturbance.expected, Place.ERRORS)
    play.refuse(call, refusal)


def _join_response(play: Play) -> session_pb2.JoinResponse:
    session, central = play.session, play.central
    used = {*play.scenario.needs, *play.scenario.uses}
    if session.parameter_wire_type in BLOCKS:
        used.add("differences")
    return session_pb2.JoinResponse(
        incarnation=central.incarnation,
        settings=central.settings,
        features=sorted(session.features & used),
        run_state=central.run_state,
        delta_wire_type=int(session.delta_wire_type),  # type: ignore[arg-type]
        parameter_wire_type=int(session.parameter_wire_type),  # type: ignore[arg-type]
        chunk_bytes=play.scenario.chunk_bytes,
        last_applied_sequence=session.last_applied,
        has_parameters=central.theta is not None,
        layout_digest=play.join_digest,
        next_eta=play.eta_to_announce,
        session_timeout_seconds=120.0,
        server_version="gemps conformance",
        shards=play.shards,
        lane_port=play.lane.port if play.lane is not None else 0,
        port=play.conversation.server.port,
    )


def _close_open_commit(play: Play) -> None:
    """End the session's open commit, as Join and Pull do. A commit whose footer has arrived is applied first."""
    late, play.late_commit = play.late_commit, None
    if late is not None:
        apply(play, late)
    play.session.open_attempt = None


def _answer_heartbeat(play: Play, event: Event) -> None:
    call, request = call_of(event), parse(event, session_pb2.HeartbeatRequest)
    if _is_known(play, call, request.session_id):
        central = play.central
        answer(
            call,
            session_pb2.HeartbeatResponse(
                incarnation=central.incarnation,
                run_state=central.run_state,
                last_applied_sequence=play.session.last_applied,
                next_eta=play.eta_to_announce,
            ),
        )


def answer_leave(play: Play, event: Event) -> None:
    """Judge and answer a Leave, and record its reason. Raises FaultError at a secondary shard, which must get none."""
    request = parse(event, session_pb2.LeaveRequest)
    check_session(play, request.session_id)
    if play.shard.is_secondary:
        raise FaultError(FaultName.UNEXPECTED_CALL, "Leave at the primary alone", "Leave", Place.SHARDS)
    play.has_left, play.leave_reason = True, request.reason
    state, last = play.central.run_state, play.session.last_applied
    answer(call_of(event), session_pb2.LeaveResponse(run_state=state, last_applied_sequence=last))


def _answer_early_leave(play: Play, event: Event) -> None:
    if play.known_session is None and play.may_stop:  # refused before it had a session
        play.refuse(call_of(event), refusal_of("UNKNOWN_SESSION"))
        return
    answer_leave(play, event)
    if not (play.may_stop or play.is_interrupted or (play.scenario.is_optional and not play.session.last_applied)):
        expected = "a worker that stays until the run is finished"
        raise FaultError(FaultName.LEFT_EARLY, expected, "Leave", Place.RULE)


def check_session(play: Play, session_id: bytes) -> None:
    """Raise a FaultError unless `session_id` is the one with which the candidate joined."""
    if play.known_session is None or session_id != play.known_session.session_id:
        expected = "the session id of Join in every call"
        raise FaultError(FaultName.WRONG_SESSION, expected, "another one", Place.SESSION)


def _is_known(play: Play, call: Call, session_id: bytes) -> bool:
    check_session(play, session_id)
    if not play.session.is_known:
        play.refuse(call, refusal_of(play.lost_reason))
    return play.session.is_known


def _answer_hello(play: Play, event: Event) -> None:
    call, hello = call_of(event), parse(event, lane_pb2.LaneHello)
    came = f"magic {hello.magic!r}, version {hello.version}, incarnation {hello.incarnation}"
    if (hello.magic, hello.version, hello.incarnation) != (b"gemps-lane", 1, play.central.incarnation):
        expected = f"magic b'gemps-lane', version 1, incarnation {play.central.incarnation}"
        raise FaultError(FaultName.WRONG_FRAME, f"a HELLO with {expected}", came, Place.LANE)
    check_session(play, hello.session_id)
    play.used.add("lane")
    lane_call: LaneCall = call  # type: ignore[assignment]
    lane_call.welcome(play.central.incarnation)


# --- parameters


def judged_pull(play: Play, event: Event) -> Pull | None:
    """Judge a Pull, and return it to be answered by `send_pull`.

    Returns None if it was answered already: refused, or with NotModified. Raises FaultError if it breaks a rule.
    """
    call, request = call_of(event), parse(event, parameters_pb2.PullRequest)
    if not _is_known(play, call, request.session_id):
        return None
    _close_open_commit(play)
    play.session.early_proceed = None
    group, is_secondary = play.group, play.shard.is_secondary
    if not is_secondary:
        group.close_delta()
    clock = group.pulled_clock if is_secondary else None
    outcome = judge_pull(call, request, play.session, play.central, play.sent_bytes, clock)
    if isinstance(outcome, Refusal):
        play.refuse(call, outcome)
    elif isinstance(outcome, Pull):
        if not is_secondary:
            group.pulled_clock = outcome.snapshot.version.clock
        return outcome
    else:
        answer(call, parameters_pb2.PullResponse(not_modified=outcome))
    return None


class Delivery(TypedDict, total=False):
    """How parameters are sent; whole and undamaged if nothing is given.

    Attributes:
        break_after: the number of chunks after which the call ends early.
        ending: the status of a call that ends early; None for OK. By default that of a broken connection.
        damaged: whether to flip a bit of the payload, so that the footer does not match.
        pause: a time in seconds after each chunk.
    """

    break_after: int
    ending: Refusal | None
    damaged: bool
    pause: float


def send_pull(play: Play, pull: Pull, **delivery: Unpack[Delivery]) -> None:
    """Answer a pull with parameters."""
    damaged = delivery.get("damaged", False)
    wire_type = play.session.parameter_wire_type.of_whole
    parts = _transfer(play, pull.snapshot, wire_type, pull.offset, damaged=damaged)
    messages = [_as_pull(one) for one in _packed(play, parts, **delivery)]
    is_sent = _send(play, pull.call, messages, pull.offset, **delivery)
    pull.snapshot.record_transfer(whole=is_sent, damaged=damaged)
    if is_sent:
        pull.call.end()
        if not play.shard.is_secondary:
            play.group.close_delta()
    _note_disturbed_transfer(play, "pull", is_sent=is_sent, damaged=damaged)


def send_commit_reply(play: Play, **delivery: Unpack[Delivery]) -> None:
    """Send the verdict and the parameters that answer the scenario's current commit, which was applied."""
    session, commit, damaged = play.session, play.commit, delivery.get("damaged", False)
    if session.verdict is None or session.snapshot is None:
        raise AssertionError("nothing was applied")
    verdict = commit_pb2.Verdict()
    verdict.CopyFrom(session.verdict)
    verdict.duplicate, verdict.run_state = commit.is_repeat, play.central.run_state
    verdict.next_eta = play.eta_to_announce
    wire_type, snapshot = session.parameter_wire_type, session.snapshot
    base = commit.base if wire_type in BLOCKS else None
    parts = _transfer(play, snapshot, wire_type if base else wire_type.of_whole, 0, damaged=damaged, base=base)
    parts.insert(0, commit_pb2.CommitResponse(verdict=verdict))
    messages = _packed(play, parts, **delivery)
    if "early-proceed" in play.scenario.uses and commit.header.byte_count > 65_536:
        messages[-1].proceed.sequence = commit.header.sequence + 1
        session.early_proceed = (commit.call, commit.header.sequence + 1)
    is_sent = _send(play, commit.call, messages, 0, **delivery)
    if base is not None:
        play.sent_bytes = 0  # a pull cannot resume a difference
    snapshot.record_transfer(whole=is_sent, damaged=damaged)
    session.record_eta(play.central.eta)
    session.open_attempt = play.disturbance = None
    if play.central.is_finished:
        _note_finished(play, f"the verdict of commit {commit.header.sequence}")
    _note_disturbed_transfer(play, f"reply to commit {commit.header.sequence}", is_sent=is_sent, damaged=damaged)


def _note_finished(play: Play, where: str) -> None:
    """Record that the answer `where` reported the run as finished, so the candidate may not commit any more."""
    expected = "Leave, and the end of the process with status 0"
    play.disturbance = Disturbance(f"announced in {where} that the run is finished", expected, Place.RUN)
    play.forbidden = Forbidden(frozenset({"Commit", "Initialize"}), FaultName.IGNORED_FINISHED, expected, Place.RUN)


def _transfer(
    play: Play, snapshot: Snapshot, wire_type: WireType, offset: int, *, damaged: bool, base: Snapshot | None = None
) -> list[commit_pb2.CommitResponse]:
    """Return the messages of a transfer, with one part each: the header, the chunks from `offset` on, and the footer.

    If `base` is given, the PARAMETERs are sent as a difference to it, encoded in `wire_type`.
    """
    play.transfers += 1
    snapshot.after_difference = None
    if base is None:
        parameters = bytes(encode(wire_type, snapshot.theta))
    else:
        held = base.as_decoded(play.session.parameter_wire_type)
        parameters = bytes(encode(wire_type, snapshot.theta - held))
        snapshot.after_difference = held + decoded(wire_type, parameters, held.size)
    payload = bytearray(parameters + snapshot.buffers)
    header = transfer_pb2.ParametersHeader(
        version=snapshot.version,
        wire_type=int(wire_type),  # type: ignore[arg-type]
        byte_count=len(payload),
        layout_digest=play.digest,
        base_version=base.version if base else None,
    )
    footer = transfer_pb2.Footer(crc32c=crc32c(bytes(payload)))
    if damaged:
        payload[len(payload) // 2] ^= 1  # a change of the lowest bit of a byte keeps the value finite
    size = play.scenario.chunk_bytes
    chunks = [bytes(payload[start : start + size]) for start in range(offset, len(payload), size)]
    return [
        commit_pb2.CommitResponse(parameters=header),
        *(commit_pb2.CommitResponse(chunk=chunk) for chunk in chunks),
        commit_pb2.CommitResponse(footer=footer),
    ]


def _packed(
    play: Play, parts: list[commit_pb2.CommitResponse], **delivery: Unpack[Delivery]
) -> list[commit_pb2.CommitResponse]:
    """Return the messages of a transfer. In every second one they have as many parts as a message may have.

    A worker must accept both. A transfer that is to be broken keeps one part in each message.
    """
    if play.transfers % 2 or "break_after" in delivery:
        return parts
    messages = [parts[0]]
    for part in parts[1:]:
        if part.chunk and messages[-1].chunk:
            messages.append(part)
        else:
            messages[-1].MergeFrom(part)
    return messages


def _send(
    play: Play,
    call: Call,
    messages: list[commit_pb2.CommitResponse] | list[parameters_pb2.PullResponse],
    offset: int,
    **delivery: Unpack[Delivery],
) -> bool:
    """Send the messages of a transfer, and count the bytes in `play.sent_bytes`. Returns whether all were sent."""
    chunks, play.sent_bytes = 0, offset
    for message in messages:
        if chunks == delivery.get("break_after") and (message.chunk or message.HasField("footer")):
            call.end(delivery.get("ending", BROKEN))
            return False
        call.send(message.SerializeToString())
        if message.chunk:
            chunks += 1
            play.sent_bytes += len(message.chunk)
            time.sleep(delivery.get("pause", 0.0))
    return True


def _as_pull(message: commit_pb2.CommitResponse) -> parameters_pb2.PullResponse:
    return parameters_pb2.PullResponse(
        header=message.parameters if message.HasField("parameters") else None,
        footer=message.footer if message.HasField("footer") else None,
        chunk=message.chunk,
    )


def _note_disturbed_transfer(play: Play, what: str, *, is_sent: bool, damaged: bool) -> None:
    if not is_sent:
        play.disturbance = Disturbance(f"broken the {what} after {play.sent_bytes} bytes of its parameters")
    elif damaged:
        play.disturbance = Disturbance(f"sent a {what} whose footer does not match its bytes")
    elif play.digest != play.join_digest:
        expected = "the end of the process, with a status other than 0, 2 and 3"
        play.disturbance = Disturbance(f"sent a {what} with another layout's digest", expected, Place.TRANSFER)


# --- commits


def judged_header(play: Play, event: Event) -> Commit | None:
    """Judge the message that begins a commit, and return the commit; None if it was refused, as its session is lost.

    Raises:
        FaultError: the message has no header, or the header breaks a rule.
    """
    call, message = call_of(event), parse(event, commit_pb2.CommitRequest)
    if not message.HasField("header"):
        raise FaultError(FaultName.OUT_OF_ORDER, "a commit's header first", "a message without it", Place.COMMIT)
    if not _is_known(play, call, message.header.session_id):
        return None
    if play.digest != play.join_digest:
        expected = "no training on parameters whose header has another digest than Join"
        came = f"a commit of sequence {message.header.sequence}"
        raise FaultError(FaultName.WRONG_DIGEST, expected, came, Place.TRANSFER)
    late, play.late_commit = play.late_commit, None
    if late is not None:
        apply(play, late)
    commit = judge_header(call, message, play.session, play.payload, play.central.settings)
    play.group.judge_commit(message.header, is_repeat=commit.is_repeat)
    return commit


def is_early(play: Play, commit: Commit) -> bool:
    """Return whether the proceed of this commit was sent already, with the reply to the one before."""
    return play.session.early_proceed == (commit.call, commit.header.sequence)


def apply(play: Play, commit: Commit, *, others_after: bool = False) -> None:
    """Apply a complete commit, once all shards have their pieces of it.

    Others commit before it, which makes its staleness greater than 0. With `others_after` they also commit after it, so
    that the parameters in its reply are newer than its verdict.
    """
    play.wait_for_other_servers()
    if not play.shard.is_secondary:
        play.group.close_delta()
    session, central = play.session, play.central
    staleness = central.others_commit()
    central.apply(values_of(commit), buffers_after(commit, central.buffers))
    session.last_applied, session.applied_crc32c = commit.header.sequence, commit.upload.crc32c
    session.applied_base, session.refused_payload = commit.base.version if commit.base else None, None
    session.verdict = commit_pb2.Verdict(
        sequence=commit.header.sequence, version=central.newest_version, staleness=staleness
    )
    session.verdict.statistics.mean_pi = 1.0
    if others_after:
        central.others_commit()
    session.record_snapshot(central.snapshot())
