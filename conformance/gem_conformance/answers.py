"""What a correct server answers: to each call that no step awaits, and the messages of every transfer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gemps.v1 import commit_pb2, lane_pb2, parameters_pb2, session_pb2, status_pb2, transfer_pb2

from gem_conformance.faults import FaultError, FaultName, Place
from gem_conformance.judge_commit import Commit, buffers_after, judge_header, values_of
from gem_conformance.judge_join import joined_session
from gem_conformance.judge_pull import Pull, judge_pull
from gem_conformance.refusals import TORN, Forbidden, Trouble, refusal, refused
from gem_conformance.state import Snapshot, decoded
from gem_conformance.talk import NotSpokenError, answer, call_of, parse
from gem_conformance.wire import Call, Event, Kind, Refusal
from gem_core.checksum import crc32c
from gem_core.wire_types import BLOCKS, WireType, encode

if TYPE_CHECKING:
    from gem_conformance.lane import LaneCall
    from gem_conformance.play import Play

__all__ = ["answer_join", "answer_leave", "apply", "check_session", "commit_reply", "forbid_after", "is_early"]
__all__ += ["judged_header", "judged_pull", "send_pull", "serve"]

_WORKER_CALLS = frozenset({"Join", "Initialize", "Pull", "Commit", "Heartbeat"})


def serve(play: Play, event: Event) -> None:
    """Answer a call as a correct server does. Raises FaultError for one that a worker must not make here."""
    call = call_of(event)
    if event.kind is Kind.HALF_CLOSED and call.method == "Commit":
        call.end()
    if event.kind is not Kind.MESSAGE:
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
            # The commit's own fault takes precedence.
            commit = judged_header(play, event)
            if commit is not None and play.central.is_finished:
                said = refusal("RUN_FINISHED")
                play.trouble = refused(commit.upload.what, said)
                forbid_after(play, said)
                play.refuse(call, said)
            elif commit is not None:
                expected = "one commit at a time, each after the other's reply"
                raise FaultError(FaultName.OUT_OF_ORDER, expected, "another one", Place.COMMIT)
        case "WatchStatus" | "GetHistory":
            play.refuse(call, refusal("NOT_OFFERED"))
        case method:
            expected = "Join, Pull, Commit, Heartbeat or Leave"
            raise FaultError(FaultName.UNEXPECTED_CALL, expected, method, Place.RULE)


def answer_join(play: Play, event: Event) -> None:
    """Judge and answer a Join, or refuse it if the run needs a feature that is missing."""
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
        raise NotSpokenError
    play.known_session = session
    session.is_known = True
    session.early = None
    _close_open_commit(play)
    session.tell_eta(play.central.eta)
    answer(call_of(event), _join_response(play))
    if play.central.is_finished:
        _said_finished(play, "Join's answer")


def _refuse_feature(play: Play, call: Call, missing: list[str]) -> None:
    said = refusal("FEATURE", missing=", ".join(missing))
    play.trouble = refused("Join", said)
    forbid_after(play, said)
    play.refuse(call, said)
    play.may_stop = True
    if play.process is None:
        raise NotSpokenError


def forbid_after(play: Play, said: Refusal) -> None:
    """Note which calls are a fault after a refusal."""
    trouble = play.trouble
    if trouble is None:
        return
    if said.is_final:
        expected = "the end of the process with status 2, after a final refusal"
        play.forbidden = Forbidden(_WORKER_CALLS, FaultName.IGNORED_FINAL, expected, Place.ERRORS)
    elif said.reason == "RUN_FINISHED":
        play.forbidden = Forbidden(frozenset({"Commit"}), FaultName.IGNORED_FINISHED, trouble.expected, Place.ERRORS)
    elif said.retry_after is None and trouble.place is Place.ERRORS:
        name = FaultName.RETRIED_WITHOUT_RETRY_INFO
        play.forbidden = Forbidden(frozenset({"Commit", "Join"}), name, trouble.expected, Place.ERRORS)


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
        next_eta=play.said_eta,
        session_timeout_seconds=120.0,
        server_version="gemps conformance",
        shards=play.shards,
        lane_port=play.lane.port if play.lane is not None else 0,
        port=play.talk.wire.port,
    )


def _close_open_commit(play: Play) -> None:
    """End the session's open commit, as Join and Pull do: one whose footer has come is applied first."""
    late, play.late = play.late, None
    if late is not None:
        apply(play, late)
    play.session.open = None


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
                next_eta=play.said_eta,
            ),
        )


def answer_leave(play: Play, event: Event) -> None:
    """Judge and answer a Leave."""
    request = parse(event, session_pb2.LeaveRequest)
    check_session(play, request.session_id)
    if play.shard.is_secondary:
        raise FaultError(FaultName.UNEXPECTED_CALL, "Leave at the primary alone", "Leave", Place.SHARDS)
    play.has_left, play.leave_reason = True, request.reason
    state, last = play.central.run_state, play.session.last_applied
    answer(call_of(event), session_pb2.LeaveResponse(run_state=state, last_applied_sequence=last))


def _answer_early_leave(play: Play, event: Event) -> None:
    if play.known_session is None and play.may_stop:  # refused before it had a session
        play.refuse(call_of(event), refusal("UNKNOWN_SESSION"))
        return
    answer_leave(play, event)
    if not (play.may_stop or play.is_interrupted or (play.scenario.is_optional and not play.session.last_applied)):
        expected = "a worker that stays until the run is finished"
        raise FaultError(FaultName.LEFT_EARLY, expected, "Leave", Place.RULE)


def check_session(play: Play, session_id: bytes) -> None:
    """Raise a FaultError unless the id is that of Join."""
    if play.known_session is None or session_id != play.known_session.session_id:
        expected = "the session id of Join in every call"
        raise FaultError(FaultName.WRONG_SESSION, expected, "another one", Place.SESSION)


def _is_known(play: Play, call: Call, session_id: bytes) -> bool:
    check_session(play, session_id)
    if not play.session.is_known:
        play.refuse(call, refusal(play.lost_reason))
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
    """Judge a Pull. None: it was answered already. Raises FaultError."""
    call, request = call_of(event), parse(event, parameters_pb2.PullRequest)
    if not _is_known(play, call, request.session_id):
        return None
    _close_open_commit(play)
    play.session.early = None
    group, is_secondary = play.group, play.shard.is_secondary
    if not is_secondary:
        group.settle()
    outcome = judge_pull(call, request, play.session, play.central, play.sent, group.pulled if is_secondary else None)
    if isinstance(outcome, Refusal):
        play.refuse(call, outcome)
    elif isinstance(outcome, Pull):
        if not is_secondary:
            group.pulled = outcome.snapshot.version.clock
        return outcome
    else:
        answer(call, parameters_pb2.PullResponse(not_modified=outcome))
    return None


def send_pull(
    play: Play, pull: Pull, *, tear_after: int | None = None, torn: Refusal | None = TORN, damaged: bool = False
) -> None:
    """Answer a pull.

    `tear_after`: end it with `torn` behind so many chunks. `damaged`: flip a bit of the payload.
    """
    wire_type = play.session.parameter_wire_type.of_whole
    parts = _transfer(play, pull.snapshot, wire_type, pull.offset, damaged=damaged)
    messages = [_as_pull(one) for one in _packed(play, parts, tear_after)]
    is_sent = _send(play, pull.call, messages, pull.offset, tear_after, torn)
    pull.snapshot.was_sent(whole=is_sent, damaged=damaged)
    if is_sent:
        pull.call.end()
        if not play.shard.is_secondary:
            play.group.settle()
    _say_what_was_sent(play, "pull", is_sent=is_sent, damaged=damaged)


def commit_reply(
    play: Play, *, tear_after: int | None = None, torn: Refusal | None = TORN, damaged: bool = False, pause: float = 0.0
) -> None:
    """Send verdict and parameters of the commit at which the scenario is; as `send_pull`. `pause`: after each chunk."""
    session, commit = play.session, play.commit
    if session.stored is None or session.snapshot is None:
        raise AssertionError("nothing was applied")
    verdict = commit_pb2.Verdict()
    verdict.CopyFrom(session.stored)
    verdict.duplicate, verdict.run_state = commit.is_repeat, play.central.run_state
    verdict.next_eta = play.said_eta
    wire_type, snapshot = session.parameter_wire_type, session.snapshot
    base = commit.base if wire_type in BLOCKS else None
    parts = _transfer(play, snapshot, wire_type if base else wire_type.of_whole, 0, damaged=damaged, base=base)
    parts.insert(0, commit_pb2.CommitResponse(verdict=verdict))
    messages = _packed(play, parts, tear_after)
    if "early-proceed" in play.scenario.uses and commit.header.byte_count > 65_536:
        messages[-1].proceed.sequence = commit.header.sequence + 1
        session.early = (commit.call, commit.header.sequence + 1)
    is_sent = _send(play, commit.call, messages, 0, tear_after, torn, pause)
    if base is not None:
        play.sent = 0  # a difference cannot be continued by a pull
    snapshot.was_sent(whole=is_sent, damaged=damaged)
    session.tell_eta(play.central.eta)
    session.open = play.trouble = None
    if play.central.is_finished:
        _said_finished(play, f"the verdict of commit {commit.header.sequence}")
    _say_what_was_sent(play, f"reply to commit {commit.header.sequence}", is_sent=is_sent, damaged=damaged)


def _said_finished(play: Play, where: str) -> None:
    """Note that the candidate was told that the run is finished: no further commit may come."""
    expected = "Leave, and the end of the process with status 0"
    play.trouble = Trouble(f"said in {where} that the run is finished", expected, Place.RUN)
    play.forbidden = Forbidden(frozenset({"Commit", "Initialize"}), FaultName.IGNORED_FINISHED, expected, Place.RUN)


def _transfer(
    play: Play, snapshot: Snapshot, wire_type: WireType, offset: int, *, damaged: bool, base: Snapshot | None = None
) -> list[commit_pb2.CommitResponse]:
    """Return header, chunks and footer. `base`: PARAMETERs are a difference to these."""
    play.transfers += 1
    snapshot.of_difference = None
    if base is None:
        parameters = bytes(encode(wire_type, snapshot.theta))
    else:
        held = base.seen(play.session.parameter_wire_type)
        parameters = bytes(encode(wire_type, snapshot.theta - held))
        snapshot.of_difference = held + decoded(wire_type, parameters, held.size)
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
        payload[len(payload) // 2] ^= 1  # the lowest bit of a byte keeps the value legal
    size = play.scenario.chunk_bytes
    chunks = [bytes(payload[start : start + size]) for start in range(offset, len(payload), size)]
    return [
        commit_pb2.CommitResponse(parameters=header),
        *(commit_pb2.CommitResponse(chunk=chunk) for chunk in chunks),
        commit_pb2.CommitResponse(footer=footer),
    ]


def _packed(
    play: Play, parts: list[commit_pb2.CommitResponse], tear_after: int | None
) -> list[commit_pb2.CommitResponse]:
    """Return messages that have one part each, and in every second transfer as many as one message may have."""
    if play.transfers % 2 or tear_after is not None:
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
    tear_after: int | None,
    torn: Refusal | None,
    pause: float = 0.0,
) -> bool:
    """Send messages; return whether all were sent."""
    chunks, play.sent = 0, offset
    for message in messages:
        if chunks == tear_after and (message.chunk or message.HasField("footer")):
            call.end(torn)
            return False
        call.send(message.SerializeToString())
        if message.chunk:
            chunks += 1
            play.sent += len(message.chunk)
            time.sleep(pause)
    return True


def _as_pull(message: commit_pb2.CommitResponse) -> parameters_pb2.PullResponse:
    return parameters_pb2.PullResponse(
        header=message.parameters if message.HasField("parameters") else None,
        footer=message.footer if message.HasField("footer") else None,
        chunk=message.chunk,
    )


def _say_what_was_sent(play: Play, what: str, *, is_sent: bool, damaged: bool) -> None:
    if not is_sent:
        play.trouble = Trouble(f"torn the {what} behind {play.sent} bytes of its parameters")
    elif damaged:
        play.trouble = Trouble(f"sent a {what} whose footer does not match its bytes")
    elif play.digest != play.join_digest:
        expected = "the end of the process, with a status other than 0, 2 and 3"
        play.trouble = Trouble(f"sent a {what} with another layout's digest", expected, Place.TRANSFER)


# --- commits


def judged_header(play: Play, event: Event) -> Commit | None:
    """Judge a commit's header. None: it was refused. Raises FaultError."""
    call, message = call_of(event), parse(event, commit_pb2.CommitRequest)
    if not message.HasField("header"):
        raise FaultError(FaultName.OUT_OF_ORDER, "a commit's header first", "a message without it", Place.COMMIT)
    if not _is_known(play, call, message.header.session_id):
        return None
    if play.digest != play.join_digest:
        expected = "no training on parameters whose header has another digest than Join"
        came = f"a commit of sequence {message.header.sequence}"
        raise FaultError(FaultName.WRONG_DIGEST, expected, came, Place.TRANSFER)
    late, play.late = play.late, None
    if late is not None:
        apply(play, late)
    commit = judge_header(call, message, play.session, play.payload, play.central.settings)
    play.group.judge_commit(message.header, is_repeat=commit.is_repeat)
    return commit


def is_early(play: Play, commit: Commit) -> bool:
    """Whether the commit's proceed came with the reply before."""
    return play.session.early == (commit.call, commit.header.sequence)


def apply(play: Play, commit: Commit, *, others_behind: bool = False) -> None:
    """Apply a complete commit once all shards hold their pieces; others commit before it, or also behind it."""
    play.meet()
    if not play.shard.is_secondary:
        play.group.settle()
    session, central = play.session, play.central
    staleness = central.others_commit()
    central.apply(values_of(commit), buffers_after(commit, central.buffers))
    session.last_applied, session.crc32c = commit.header.sequence, commit.upload.crc32c
    session.base, session.refused = commit.base.version if commit.base else None, None
    session.stored = commit_pb2.Verdict(
        sequence=commit.header.sequence, version=central.newest_version, staleness=staleness
    )
    session.stored.statistics.mean_pi = 1.0
    if others_behind:
        central.others_commit()
    session.hold(central.snapshot())
