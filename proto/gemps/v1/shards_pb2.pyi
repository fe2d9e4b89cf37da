from gemps.v1 import commit_pb2 as _commit_pb2
from gemps.v1 import errors_pb2 as _errors_pb2
from gemps.v1 import layout_pb2 as _layout_pb2
from gemps.v1 import run_pb2 as _run_pb2
from gemps.v1 import transfer_pb2 as _transfer_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ShardHello(_message.Message):
    __slots__ = ("shard", "shards", "address", "rule", "clocks", "run")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    CLOCKS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    shard: int
    shards: int
    address: str
    rule: str
    clocks: _containers.RepeatedScalarFieldContainer[int]
    run: str
    def __init__(self, shard: _Optional[int] = ..., shards: _Optional[int] = ..., address: _Optional[str] = ..., rule: _Optional[str] = ..., clocks: _Optional[_Iterable[int]] = ..., run: _Optional[str] = ...) -> None: ...

class ShardReady(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RecordWritten(_message.Message):
    __slots__ = ("clock",)
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    clock: int
    def __init__(self, clock: _Optional[int] = ...) -> None: ...

class CheckpointWritten(_message.Message):
    __slots__ = ("number", "error")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    number: int
    error: str
    def __init__(self, number: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class PieceHeld(_message.Message):
    __slots__ = ("session_id", "commit_id", "attempt")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    COMMIT_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    commit_id: int
    attempt: int
    def __init__(self, session_id: _Optional[bytes] = ..., commit_id: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class ParametersHeld(_message.Message):
    __slots__ = ("attempt",)
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    def __init__(self, attempt: _Optional[int] = ...) -> None: ...

class SessionRefused(_message.Message):
    __slots__ = ("session_id", "reason", "message")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    reason: _errors_pb2.ErrorReason
    message: str
    def __init__(self, session_id: _Optional[bytes] = ..., reason: _Optional[_Union[_errors_pb2.ErrorReason, str]] = ..., message: _Optional[str] = ...) -> None: ...

class ShardState(_message.Message):
    __slots__ = ("clock", "anonymous_bytes", "commits", "sums", "run_commits", "run_sums")
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    ANONYMOUS_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    RUN_COMMITS_FIELD_NUMBER: _ClassVar[int]
    RUN_SUMS_FIELD_NUMBER: _ClassVar[int]
    clock: int
    anonymous_bytes: int
    commits: int
    sums: _commit_pb2.CommitStatistics
    run_commits: int
    run_sums: _commit_pb2.CommitStatistics
    def __init__(self, clock: _Optional[int] = ..., anonymous_bytes: _Optional[int] = ..., commits: _Optional[int] = ..., sums: _Optional[_Union[_commit_pb2.CommitStatistics, _Mapping]] = ..., run_commits: _Optional[int] = ..., run_sums: _Optional[_Union[_commit_pb2.CommitStatistics, _Mapping]] = ...) -> None: ...

class WorkerFigures(_message.Message):
    __slots__ = ("worker_name", "newest", "recent")
    WORKER_NAME_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    RECENT_FIELD_NUMBER: _ClassVar[int]
    worker_name: str
    newest: _commit_pb2.CommitStatistics
    recent: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, worker_name: _Optional[str] = ..., newest: _Optional[_Union[_commit_pb2.CommitStatistics, _Mapping]] = ..., recent: _Optional[_Iterable[float]] = ...) -> None: ...

class CheckpointNeeded(_message.Message):
    __slots__ = ("newest",)
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    newest: int
    def __init__(self, newest: _Optional[int] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("piece_held", "parameters_held", "session_refused", "piece_refused", "ready", "record_written", "checkpoint_written", "shard_state", "worker_figures", "checkpoint_needed")
    PIECE_HELD_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_HELD_FIELD_NUMBER: _ClassVar[int]
    SESSION_REFUSED_FIELD_NUMBER: _ClassVar[int]
    PIECE_REFUSED_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    RECORD_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    SHARD_STATE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIGURES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_NEEDED_FIELD_NUMBER: _ClassVar[int]
    piece_held: PieceHeld
    parameters_held: ParametersHeld
    session_refused: SessionRefused
    piece_refused: CommitRefused
    ready: ShardReady
    record_written: RecordWritten
    checkpoint_written: CheckpointWritten
    shard_state: ShardState
    worker_figures: WorkerFigures
    checkpoint_needed: CheckpointNeeded
    def __init__(self, piece_held: _Optional[_Union[PieceHeld, _Mapping]] = ..., parameters_held: _Optional[_Union[ParametersHeld, _Mapping]] = ..., session_refused: _Optional[_Union[SessionRefused, _Mapping]] = ..., piece_refused: _Optional[_Union[CommitRefused, _Mapping]] = ..., ready: _Optional[_Union[ShardReady, _Mapping]] = ..., record_written: _Optional[_Union[RecordWritten, _Mapping]] = ..., checkpoint_written: _Optional[_Union[CheckpointWritten, _Mapping]] = ..., shard_state: _Optional[_Union[ShardState, _Mapping]] = ..., worker_figures: _Optional[_Union[WorkerFigures, _Mapping]] = ..., checkpoint_needed: _Optional[_Union[CheckpointNeeded, _Mapping]] = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("hello", "reports")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    hello: ShardHello
    reports: _containers.RepeatedCompositeFieldContainer[Report]
    def __init__(self, hello: _Optional[_Union[ShardHello, _Mapping]] = ..., reports: _Optional[_Iterable[_Union[Report, _Mapping]]] = ...) -> None: ...

class SessionJoined(_message.Message):
    __slots__ = ("session_id", "worker_name", "layout", "delta_wire_type", "parameter_wire_type")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_NAME_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    DELTA_WIRE_TYPE_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_WIRE_TYPE_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    worker_name: str
    layout: _layout_pb2.Layout
    delta_wire_type: _transfer_pb2.WireType
    parameter_wire_type: _transfer_pb2.WireType
    def __init__(self, session_id: _Optional[bytes] = ..., worker_name: _Optional[str] = ..., layout: _Optional[_Union[_layout_pb2.Layout, _Mapping]] = ..., delta_wire_type: _Optional[_Union[_transfer_pb2.WireType, str]] = ..., parameter_wire_type: _Optional[_Union[_transfer_pb2.WireType, str]] = ...) -> None: ...

class SessionEnded(_message.Message):
    __slots__ = ("session_id", "reason", "message")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    reason: _errors_pb2.ErrorReason
    message: str
    def __init__(self, session_id: _Optional[bytes] = ..., reason: _Optional[_Union[_errors_pb2.ErrorReason, str]] = ..., message: _Optional[str] = ...) -> None: ...

class CommitExpected(_message.Message):
    __slots__ = ("session_id", "commit_id", "attempt")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    COMMIT_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    commit_id: int
    attempt: int
    def __init__(self, session_id: _Optional[bytes] = ..., commit_id: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class CommitRefused(_message.Message):
    __slots__ = ("session_id", "commit_id", "reason", "message", "retry_after")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    COMMIT_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    commit_id: int
    reason: _errors_pb2.ErrorReason
    message: str
    retry_after: float
    def __init__(self, session_id: _Optional[bytes] = ..., commit_id: _Optional[int] = ..., reason: _Optional[_Union[_errors_pb2.ErrorReason, str]] = ..., message: _Optional[str] = ..., retry_after: _Optional[float] = ...) -> None: ...

class CommitOrdered(_message.Message):
    __slots__ = ("session_id", "commit_id", "clock", "eta", "decays", "withheld")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    COMMIT_ID_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    ETA_FIELD_NUMBER: _ClassVar[int]
    DECAYS_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    commit_id: int
    clock: int
    eta: float
    decays: _containers.RepeatedScalarFieldContainer[float]
    withheld: bool
    def __init__(self, session_id: _Optional[bytes] = ..., commit_id: _Optional[int] = ..., clock: _Optional[int] = ..., eta: _Optional[float] = ..., decays: _Optional[_Iterable[float]] = ..., withheld: bool = ...) -> None: ...

class PullOrdered(_message.Message):
    __slots__ = ("session_id", "clock")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    clock: int
    def __init__(self, session_id: _Optional[bytes] = ..., clock: _Optional[int] = ...) -> None: ...

class WorkerForgotten(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    def __init__(self, session_id: _Optional[bytes] = ...) -> None: ...

class ParametersExpected(_message.Message):
    __slots__ = ("session_id", "attempt")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    attempt: int
    def __init__(self, session_id: _Optional[bytes] = ..., attempt: _Optional[int] = ...) -> None: ...

class ParametersOrdered(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    def __init__(self, session_id: _Optional[bytes] = ...) -> None: ...

class SnapshotOrdered(_message.Message):
    __slots__ = ("clock",)
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    clock: int
    def __init__(self, clock: _Optional[int] = ...) -> None: ...

class RuleDecided(_message.Message):
    __slots__ = ("recipe", "direction")
    RECIPE_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    recipe: _run_pb2.Recipe
    direction: str
    def __init__(self, recipe: _Optional[_Union[_run_pb2.Recipe, _Mapping]] = ..., direction: _Optional[str] = ...) -> None: ...

class RunFinished(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Begin(_message.Message):
    __slots__ = ("clock", "run", "run_name")
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    RUN_NAME_FIELD_NUMBER: _ClassVar[int]
    clock: int
    run: str
    run_name: str
    def __init__(self, clock: _Optional[int] = ..., run: _Optional[str] = ..., run_name: _Optional[str] = ...) -> None: ...

class RecordEnded(_message.Message):
    __slots__ = ("clock",)
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    clock: int
    def __init__(self, clock: _Optional[int] = ...) -> None: ...

class DurableEverywhere(_message.Message):
    __slots__ = ("clock",)
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    clock: int
    def __init__(self, clock: _Optional[int] = ...) -> None: ...

class CheckpointCut(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class CheckpointComplete(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class Operation(_message.Message):
    __slots__ = ("session_joined", "session_ended", "commit_expected", "commit_refused", "commit_ordered", "pull_ordered", "worker_forgotten", "parameters_expected", "parameters_ordered", "run_finished", "record_ended", "durable_everywhere", "checkpoint_cut", "checkpoint_complete", "snapshot_ordered", "rule_decided")
    SESSION_JOINED_FIELD_NUMBER: _ClassVar[int]
    SESSION_ENDED_FIELD_NUMBER: _ClassVar[int]
    COMMIT_EXPECTED_FIELD_NUMBER: _ClassVar[int]
    COMMIT_REFUSED_FIELD_NUMBER: _ClassVar[int]
    COMMIT_ORDERED_FIELD_NUMBER: _ClassVar[int]
    PULL_ORDERED_FIELD_NUMBER: _ClassVar[int]
    WORKER_FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_EXPECTED_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_ORDERED_FIELD_NUMBER: _ClassVar[int]
    RUN_FINISHED_FIELD_NUMBER: _ClassVar[int]
    RECORD_ENDED_FIELD_NUMBER: _ClassVar[int]
    DURABLE_EVERYWHERE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_CUT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ORDERED_FIELD_NUMBER: _ClassVar[int]
    RULE_DECIDED_FIELD_NUMBER: _ClassVar[int]
    session_joined: SessionJoined
    session_ended: SessionEnded
    commit_expected: CommitExpected
    commit_refused: CommitRefused
    commit_ordered: CommitOrdered
    pull_ordered: PullOrdered
    worker_forgotten: WorkerForgotten
    parameters_expected: ParametersExpected
    parameters_ordered: ParametersOrdered
    run_finished: RunFinished
    record_ended: RecordEnded
    durable_everywhere: DurableEverywhere
    checkpoint_cut: CheckpointCut
    checkpoint_complete: CheckpointComplete
    snapshot_ordered: SnapshotOrdered
    rule_decided: RuleDecided
    def __init__(self, session_joined: _Optional[_Union[SessionJoined, _Mapping]] = ..., session_ended: _Optional[_Union[SessionEnded, _Mapping]] = ..., commit_expected: _Optional[_Union[CommitExpected, _Mapping]] = ..., commit_refused: _Optional[_Union[CommitRefused, _Mapping]] = ..., commit_ordered: _Optional[_Union[CommitOrdered, _Mapping]] = ..., pull_ordered: _Optional[_Union[PullOrdered, _Mapping]] = ..., worker_forgotten: _Optional[_Union[WorkerForgotten, _Mapping]] = ..., parameters_expected: _Optional[_Union[ParametersExpected, _Mapping]] = ..., parameters_ordered: _Optional[_Union[ParametersOrdered, _Mapping]] = ..., run_finished: _Optional[_Union[RunFinished, _Mapping]] = ..., record_ended: _Optional[_Union[RecordEnded, _Mapping]] = ..., durable_everywhere: _Optional[_Union[DurableEverywhere, _Mapping]] = ..., checkpoint_cut: _Optional[_Union[CheckpointCut, _Mapping]] = ..., checkpoint_complete: _Optional[_Union[CheckpointComplete, _Mapping]] = ..., snapshot_ordered: _Optional[_Union[SnapshotOrdered, _Mapping]] = ..., rule_decided: _Optional[_Union[RuleDecided, _Mapping]] = ...) -> None: ...

class FollowResponse(_message.Message):
    __slots__ = ("begin", "operations")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    begin: Begin
    operations: _containers.RepeatedCompositeFieldContainer[Operation]
    def __init__(self, begin: _Optional[_Union[Begin, _Mapping]] = ..., operations: _Optional[_Iterable[_Union[Operation, _Mapping]]] = ...) -> None: ...
