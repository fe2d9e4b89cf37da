"""Converts operations and reports of shards (shards.proto)."""

from collections.abc import Callable, Iterable
from typing import Any

from gemps.v1 import shards_pb2

from gem_core import Layout, Statistics, WireType
from gem_core.shards import MAX_SHARDS, Shard
from gem_server.errors import Reason, RefusedError
from gem_server.service import messages
from gem_server.shards.operations import (
    Begin,
    CheckpointComplete,
    CheckpointCut,
    CheckpointNeeded,
    CheckpointWritten,
    CommitExpected,
    CommitOrdered,
    CommitRefused,
    DurableEverywhere,
    Ended,
    Finished,
    Forgotten,
    Hello,
    Joined,
    Operation,
    ParametersExpected,
    ParametersHeld,
    ParametersOrdered,
    PieceHeld,
    PullOrdered,
    Ready,
    RecordEnded,
    RecordWritten,
    Report,
    RuleDecided,
    SessionRefused,
    ShardState,
    SnapshotOrdered,
    WorkerFigures,
)
from gem_server.telemetry.run_totals import RunTotals
from gem_server.telemetry.worker_telemetry import Figures

_REASONS = {reason.value[1]: reason for reason in Reason}


def operations_to(operations: Iterable[Operation]) -> bytes:
    """Encode operations."""
    message = shards_pb2.FollowResponse()
    for operation in operations:
        _put_operation(operation, message.operations.add())
    return message.SerializeToString()


def _put_operation(operation: Operation, message: shards_pb2.Operation) -> None:
    match operation:
        case Joined():
            joined = message.session_joined
            joined.session_id = operation.session_id
            joined.worker_name = operation.worker_name
            joined.layout.MergeFromString(messages.layout_to(operation.layout.whole))
            joined.delta_wire_type = int(operation.delta_wire_type)  # type: ignore[assignment]
            joined.parameter_wire_type = int(operation.parameter_wire_type)  # type: ignore[assignment]
        case Ended(session_id, refusal):
            message.session_ended.session_id = session_id
            _put_reason(refusal, message.session_ended)
        case CommitExpected(session_id, commit_id, attempt):
            expected = message.commit_expected
            expected.session_id, expected.commit_id, expected.attempt = session_id, commit_id, attempt
        case CommitRefused():
            _put_refused(operation, message.commit_refused)
        case CommitOrdered(session_id, commit_id, clock, eta, decays, withheld):
            ordered = message.commit_ordered
            ordered.session_id, ordered.commit_id, ordered.clock, ordered.eta = session_id, commit_id, clock, eta
            ordered.decays.extend(decays)
            ordered.withheld = withheld
        case PullOrdered(session_id, clock):
            message.pull_ordered.session_id = session_id
            message.pull_ordered.clock = clock
        case Forgotten(session_id):
            message.worker_forgotten.session_id = session_id
        case ParametersExpected(session_id, attempt):
            message.parameters_expected.session_id, message.parameters_expected.attempt = session_id, attempt
        case ParametersOrdered(session_id):
            message.parameters_ordered.session_id = session_id
        case Finished(reason):
            message.run_finished.reason = reason
        case RecordEnded(clock):
            message.record_ended.clock = clock
        case DurableEverywhere(clock):
            message.durable_everywhere.clock = clock
        case CheckpointCut(number):
            message.checkpoint_cut.number = number
        case CheckpointComplete(number):
            message.checkpoint_complete.number = number
        case SnapshotOrdered(clock):
            message.snapshot_ordered.clock = clock
        case RuleDecided(recipe, direction):
            message.rule_decided.direction = direction
            if recipe is not None:
                message.rule_decided.recipe.CopyFrom(messages.recipe_to(recipe))


def operation_from(message: shards_pb2.Operation) -> Operation | None:
    """Decode an operation other than Joined; None: unknown to this version. Raises ValueError."""
    kind = message.WhichOneof("operation")
    return _OPERATIONS[kind](getattr(message, kind)) if kind in _OPERATIONS else None


def hello_to(hello: Hello) -> shards_pb2.FollowRequest:
    """Encode a secondary's first message."""
    message = shards_pb2.ShardHello(
        shard=hello.shard.index,
        shards=hello.shard.count,
        address=hello.address,
        rule=hello.rule,
        clocks=hello.clocks,
        run=hello.run,
    )
    return shards_pb2.FollowRequest(hello=message)


def hello_from(message: shards_pb2.FollowRequest) -> Hello:
    """Decode a secondary's first message. Raises MALFORMED."""
    hello = message.hello
    if not message.HasField("hello") or not hello.shard < hello.shards <= MAX_SHARDS:
        raise RefusedError(Reason.MALFORMED, "Follow: send the hello first, with shard < shards")
    address = messages.text(hello.address, "address", required=True)
    return Hello(
        Shard(hello.shard, hello.shards), address, hello.rule, tuple(hello.clocks), messages.text(hello.run, "run")
    )


def begin_to(begin: Begin) -> bytes:
    """Encode the primary's answer."""
    message = shards_pb2.Begin(clock=begin.clock, run=begin.run, run_name=begin.run_name)
    return shards_pb2.FollowResponse(begin=message).SerializeToString()


def begin_from(message: shards_pb2.FollowResponse) -> Begin:
    """Decode the primary's answer."""
    return Begin(message.begin.clock, message.begin.run, message.begin.run_name)


def reports_to(reports: Iterable[Report]) -> shards_pb2.FollowRequest:
    """Encode reports."""
    message = shards_pb2.FollowRequest()
    for report in reports:
        _put_report(report, message.reports.add())
    return message


def _put_report(report: Report, message: shards_pb2.Report) -> None:
    match report:
        case PieceHeld(session_id, commit_id, attempt):
            held = message.piece_held
            held.session_id, held.commit_id, held.attempt = session_id, commit_id, attempt
        case ParametersHeld(attempt):
            message.parameters_held.attempt = attempt
        case CommitRefused():
            _put_refused(report, message.piece_refused)
        case SessionRefused(session_id, refusal):
            message.session_refused.session_id = session_id
            _put_reason(refusal, message.session_refused)
        case Ready():
            message.ready.SetInParent()
        case RecordWritten(clock):
            message.record_written.clock = clock
        case CheckpointNeeded(newest):
            message.checkpoint_needed.newest = newest
            message.checkpoint_needed.SetInParent()
        case CheckpointWritten(number, error):
            message.checkpoint_written.number = number
            message.checkpoint_written.error = error
        case ShardState(clock, anonymous_bytes, commits, sums, totals):
            state = message.shard_state
            state.run_commits = totals.commits
            state.run_sums.mean_pi = totals.mean_pi
            state.run_sums.blocked_fraction = totals.blocked
            state.run_sums.clamped_fraction = totals.clamped
            state.clock, state.anonymous_bytes, state.commits = clock, anonymous_bytes, commits
            messages.put_statistics(Statistics._make((*sums[:5], 0.0, sums[5])), state.sums)
        case WorkerFigures(worker_name, figures):
            message.worker_figures.worker_name = worker_name
            messages.put_statistics(figures.newest, message.worker_figures.newest)
            message.worker_figures.recent.extend(figures.recent)


def report_from(message: shards_pb2.Report) -> Report:
    """Decode a report. Raises MALFORMED."""
    match message.WhichOneof("report"):
        case "piece_held":
            held = message.piece_held
            return PieceHeld(held.session_id, held.commit_id, held.attempt)
        case "parameters_held":
            return ParametersHeld(message.parameters_held.attempt)
        case "ready":
            return Ready()
        case "record_written":
            return RecordWritten(message.record_written.clock)
        case "checkpoint_written":
            return CheckpointWritten(message.checkpoint_written.number, message.checkpoint_written.error)
        case "checkpoint_needed":
            return CheckpointNeeded(message.checkpoint_needed.newest)
        case "piece_refused":
            return _refused_from(message.piece_refused)
        case "session_refused":
            return SessionRefused(message.session_refused.session_id, _reason_from(message.session_refused))
        case "shard_state":
            state = message.shard_state
            sums = messages.statistics_from(state.sums)
            run = state.run_sums
            totals = RunTotals(state.run_commits, 0, run.mean_pi, run.blocked_fraction, run.clamped_fraction)
            process_sums = (*sums[:5], sums.update_norm)
            return ShardState(state.clock, state.anonymous_bytes, state.commits, process_sums, totals)
        case "worker_figures":
            seen = message.worker_figures
            if len(seen.recent) not in (0, 3):
                raise RefusedError(Reason.MALFORMED, "Follow: recent has 3 values, or none")
            return WorkerFigures(seen.worker_name, Figures(messages.statistics_from(seen.newest), tuple(seen.recent)))
    raise RefusedError(Reason.MALFORMED, "Follow: an unknown report")


def joined_from(joined: shards_pb2.SessionJoined, layout: Layout) -> Joined:
    """Decode Joined, with this shard's layout. Raises ValueError."""
    return Joined(
        joined.session_id,
        joined.worker_name,
        layout,
        WireType(joined.delta_wire_type),
        WireType(joined.parameter_wire_type),
    )


def _refused_from(refused: shards_pb2.CommitRefused) -> CommitRefused:
    refusal = _reason_from(refused)
    refusal.retry_after = refused.retry_after if refused.HasField("retry_after") else None
    return CommitRefused(refused.session_id, refused.commit_id, refusal)


def _put_refused(refused: CommitRefused, message: shards_pb2.CommitRefused) -> None:
    message.session_id = refused.session_id
    message.commit_id = refused.commit_id
    _put_reason(refused.refusal, message)
    if refused.refusal.retry_after is not None:
        message.retry_after = refused.refusal.retry_after


def _put_reason(refusal: RefusedError, message: Any) -> None:
    message.reason = refusal.reason.value[1]
    message.message = refusal.message


def _reason_from(message: Any) -> RefusedError:
    return RefusedError(_REASONS.get(message.reason, Reason.INTERNAL), message.message)


_OPERATIONS: dict[str, Callable[[Any], Operation]] = {
    "session_ended": lambda one: Ended(one.session_id, _reason_from(one)),
    "commit_expected": lambda one: CommitExpected(one.session_id, one.commit_id, one.attempt),
    "commit_refused": _refused_from,
    "commit_ordered": lambda one: CommitOrdered(
        one.session_id, one.commit_id, one.clock, one.eta, tuple(one.decays), one.withheld
    ),
    "pull_ordered": lambda one: PullOrdered(one.session_id, one.clock),
    "worker_forgotten": lambda one: Forgotten(one.session_id),
    "parameters_expected": lambda one: ParametersExpected(one.session_id, one.attempt),
    "parameters_ordered": lambda one: ParametersOrdered(one.session_id),
    "run_finished": lambda one: Finished(one.reason),
    "record_ended": lambda one: RecordEnded(one.clock),
    "durable_everywhere": lambda one: DurableEverywhere(one.clock),
    "checkpoint_cut": lambda one: CheckpointCut(one.number),
    "checkpoint_complete": lambda one: CheckpointComplete(one.number),
    "snapshot_ordered": lambda one: SnapshotOrdered(one.clock),
    "rule_decided": lambda one: RuleDecided(
        messages.recipe_from(one.recipe) if one.HasField("recipe") else None, one.direction
    ),
}
