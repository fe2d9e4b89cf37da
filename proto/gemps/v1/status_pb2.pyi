from gemps.v1 import commit_pb2 as _commit_pb2
from gemps.v1 import run_pb2 as _run_pb2
from gemps.v1 import transfer_pb2 as _transfer_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_STATE_UNSPECIFIED: _ClassVar[WorkerState]
    WORKER_STATE_JOINED: _ClassVar[WorkerState]
    WORKER_STATE_TRAINING: _ClassVar[WorkerState]
    WORKER_STATE_FINISHED: _ClassVar[WorkerState]
    WORKER_STATE_LEFT: _ClassVar[WorkerState]
    WORKER_STATE_EXPIRED: _ClassVar[WorkerState]
    WORKER_STATE_SUPERSEDED: _ClassVar[WorkerState]

class WorkerCondition(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_CONDITION_UNSPECIFIED: _ClassVar[WorkerCondition]
    WORKER_CONDITION_WELL: _ClassVar[WorkerCondition]
    WORKER_CONDITION_SILENT: _ClassVar[WorkerCondition]
    WORKER_CONDITION_SLOW: _ClassVar[WorkerCondition]
    WORKER_CONDITION_MUTED: _ClassVar[WorkerCondition]
    WORKER_CONDITION_GONE: _ClassVar[WorkerCondition]
    WORKER_CONDITION_DEPARTED: _ClassVar[WorkerCondition]

class ProblemSeverity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROBLEM_SEVERITY_UNSPECIFIED: _ClassVar[ProblemSeverity]
    PROBLEM_SEVERITY_WARNING: _ClassVar[ProblemSeverity]
    PROBLEM_SEVERITY_CRITICAL: _ClassVar[ProblemSeverity]

class TransportKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRANSPORT_KIND_UNSPECIFIED: _ClassVar[TransportKind]
    TRANSPORT_KIND_GRPC: _ClassVar[TransportKind]
    TRANSPORT_KIND_LANE: _ClassVar[TransportKind]
    TRANSPORT_KIND_SHARED_MEMORY: _ClassVar[TransportKind]
WORKER_STATE_UNSPECIFIED: WorkerState
WORKER_STATE_JOINED: WorkerState
WORKER_STATE_TRAINING: WorkerState
WORKER_STATE_FINISHED: WorkerState
WORKER_STATE_LEFT: WorkerState
WORKER_STATE_EXPIRED: WorkerState
WORKER_STATE_SUPERSEDED: WorkerState
WORKER_CONDITION_UNSPECIFIED: WorkerCondition
WORKER_CONDITION_WELL: WorkerCondition
WORKER_CONDITION_SILENT: WorkerCondition
WORKER_CONDITION_SLOW: WorkerCondition
WORKER_CONDITION_MUTED: WorkerCondition
WORKER_CONDITION_GONE: WorkerCondition
WORKER_CONDITION_DEPARTED: WorkerCondition
PROBLEM_SEVERITY_UNSPECIFIED: ProblemSeverity
PROBLEM_SEVERITY_WARNING: ProblemSeverity
PROBLEM_SEVERITY_CRITICAL: ProblemSeverity
TRANSPORT_KIND_UNSPECIFIED: TransportKind
TRANSPORT_KIND_GRPC: TransportKind
TRANSPORT_KIND_LANE: TransportKind
TRANSPORT_KIND_SHARED_MEMORY: TransportKind

class Histogram(_message.Message):
    __slots__ = ("bounds", "counts", "sum")
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    bounds: _containers.RepeatedScalarFieldContainer[float]
    counts: _containers.RepeatedScalarFieldContainer[int]
    sum: float
    def __init__(self, bounds: _Optional[_Iterable[float]] = ..., counts: _Optional[_Iterable[int]] = ..., sum: _Optional[float] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("name", "host_id", "rank", "host_rank", "state", "agent", "device", "commits", "refused", "duplicates", "sessions", "commits_per_second", "staleness_last", "staleness_mean", "statistics", "loss", "samples", "wait_mean_seconds", "wait_max_seconds", "bytes_received", "bytes_sent", "seconds_since_last_call", "snapshot_version", "shares_memory", "condition", "recent_mean_pi", "recent_blocked_fraction", "recent_clamped_fraction", "staleness", "wait", "wait_p50_seconds", "wait_p99_seconds", "staleness_p99", "transport", "local_steps", "host_name", "engine", "delta_wire_type", "parameter_wire_type", "scaled", "quarantined")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_RANK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    COMMITS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    STALENESS_LAST_FIELD_NUMBER: _ClassVar[int]
    STALENESS_MEAN_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    WAIT_MEAN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MAX_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_SINCE_LAST_CALL_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_VERSION_FIELD_NUMBER: _ClassVar[int]
    SHARES_MEMORY_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    RECENT_MEAN_PI_FIELD_NUMBER: _ClassVar[int]
    RECENT_BLOCKED_FRACTION_FIELD_NUMBER: _ClassVar[int]
    RECENT_CLAMPED_FRACTION_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    WAIT_P50_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAIT_P99_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_P99_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    LOCAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    DELTA_WIRE_TYPE_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_WIRE_TYPE_FIELD_NUMBER: _ClassVar[int]
    SCALED_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    name: str
    host_id: str
    rank: int
    host_rank: int
    state: WorkerState
    agent: str
    device: str
    commits: int
    refused: int
    duplicates: int
    sessions: int
    commits_per_second: float
    staleness_last: int
    staleness_mean: float
    statistics: _commit_pb2.CommitStatistics
    loss: float
    samples: int
    wait_mean_seconds: float
    wait_max_seconds: float
    bytes_received: int
    bytes_sent: int
    seconds_since_last_call: float
    snapshot_version: _transfer_pb2.Version
    shares_memory: bool
    condition: WorkerCondition
    recent_mean_pi: float
    recent_blocked_fraction: float
    recent_clamped_fraction: float
    staleness: Histogram
    wait: Histogram
    wait_p50_seconds: float
    wait_p99_seconds: float
    staleness_p99: float
    transport: TransportKind
    local_steps: int
    host_name: str
    engine: str
    delta_wire_type: _transfer_pb2.WireType
    parameter_wire_type: _transfer_pb2.WireType
    scaled: int
    quarantined: bool
    def __init__(self, name: _Optional[str] = ..., host_id: _Optional[str] = ..., rank: _Optional[int] = ..., host_rank: _Optional[int] = ..., state: _Optional[_Union[WorkerState, str]] = ..., agent: _Optional[str] = ..., device: _Optional[str] = ..., commits: _Optional[int] = ..., refused: _Optional[int] = ..., duplicates: _Optional[int] = ..., sessions: _Optional[int] = ..., commits_per_second: _Optional[float] = ..., staleness_last: _Optional[int] = ..., staleness_mean: _Optional[float] = ..., statistics: _Optional[_Union[_commit_pb2.CommitStatistics, _Mapping]] = ..., loss: _Optional[float] = ..., samples: _Optional[int] = ..., wait_mean_seconds: _Optional[float] = ..., wait_max_seconds: _Optional[float] = ..., bytes_received: _Optional[int] = ..., bytes_sent: _Optional[int] = ..., seconds_since_last_call: _Optional[float] = ..., snapshot_version: _Optional[_Union[_transfer_pb2.Version, _Mapping]] = ..., shares_memory: bool = ..., condition: _Optional[_Union[WorkerCondition, str]] = ..., recent_mean_pi: _Optional[float] = ..., recent_blocked_fraction: _Optional[float] = ..., recent_clamped_fraction: _Optional[float] = ..., staleness: _Optional[_Union[Histogram, _Mapping]] = ..., wait: _Optional[_Union[Histogram, _Mapping]] = ..., wait_p50_seconds: _Optional[float] = ..., wait_p99_seconds: _Optional[float] = ..., staleness_p99: _Optional[float] = ..., transport: _Optional[_Union[TransportKind, str]] = ..., local_steps: _Optional[int] = ..., host_name: _Optional[str] = ..., engine: _Optional[str] = ..., delta_wire_type: _Optional[_Union[_transfer_pb2.WireType, str]] = ..., parameter_wire_type: _Optional[_Union[_transfer_pb2.WireType, str]] = ..., scaled: _Optional[int] = ..., quarantined: bool = ...) -> None: ...

class Evaluation(_message.Message):
    __slots__ = ("version", "loss", "accuracy", "samples", "evaluator", "run_seconds", "bits_per_character")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    EVALUATOR_FIELD_NUMBER: _ClassVar[int]
    RUN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BITS_PER_CHARACTER_FIELD_NUMBER: _ClassVar[int]
    version: _transfer_pb2.Version
    loss: float
    accuracy: float
    samples: int
    evaluator: str
    run_seconds: float
    bits_per_character: float
    def __init__(self, version: _Optional[_Union[_transfer_pb2.Version, _Mapping]] = ..., loss: _Optional[float] = ..., accuracy: _Optional[float] = ..., samples: _Optional[int] = ..., evaluator: _Optional[str] = ..., run_seconds: _Optional[float] = ..., bits_per_character: _Optional[float] = ...) -> None: ...

class MemoryStatus(_message.Message):
    __slots__ = ("limit_bytes", "reserved_bytes", "worker_bytes", "anonymous_bytes")
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    WORKER_BYTES_FIELD_NUMBER: _ClassVar[int]
    ANONYMOUS_BYTES_FIELD_NUMBER: _ClassVar[int]
    limit_bytes: int
    reserved_bytes: int
    worker_bytes: int
    anonymous_bytes: int
    def __init__(self, limit_bytes: _Optional[int] = ..., reserved_bytes: _Optional[int] = ..., worker_bytes: _Optional[int] = ..., anonymous_bytes: _Optional[int] = ...) -> None: ...

class QueueStatus(_message.Message):
    __slots__ = ("length", "staging_buffers", "staging_buffers_in_use", "waiting", "waiting_limit")
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    STAGING_BUFFERS_FIELD_NUMBER: _ClassVar[int]
    STAGING_BUFFERS_IN_USE_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    WAITING_LIMIT_FIELD_NUMBER: _ClassVar[int]
    length: int
    staging_buffers: int
    staging_buffers_in_use: int
    waiting: int
    waiting_limit: int
    def __init__(self, length: _Optional[int] = ..., staging_buffers: _Optional[int] = ..., staging_buffers_in_use: _Optional[int] = ..., waiting: _Optional[int] = ..., waiting_limit: _Optional[int] = ...) -> None: ...

class CheckpointStatus(_message.Message):
    __slots__ = ("path", "version", "seconds_ago", "durability")
    PATH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SECONDS_AGO_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    path: str
    version: _transfer_pb2.Version
    seconds_ago: float
    durability: str
    def __init__(self, path: _Optional[str] = ..., version: _Optional[_Union[_transfer_pb2.Version, _Mapping]] = ..., seconds_ago: _Optional[float] = ..., durability: _Optional[str] = ...) -> None: ...

class ShardStatus(_message.Message):
    __slots__ = ("index", "address", "begin", "end", "ready", "clock", "anonymous_bytes")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    ANONYMOUS_BYTES_FIELD_NUMBER: _ClassVar[int]
    index: int
    address: str
    begin: int
    end: int
    ready: bool
    clock: int
    anonymous_bytes: int
    def __init__(self, index: _Optional[int] = ..., address: _Optional[str] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ..., ready: bool = ..., clock: _Optional[int] = ..., anonymous_bytes: _Optional[int] = ...) -> None: ...

class ShardsStatus(_message.Message):
    __slots__ = ("index", "count", "primary", "servers")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    index: int
    count: int
    primary: str
    servers: _containers.RepeatedCompositeFieldContainer[ShardStatus]
    def __init__(self, index: _Optional[int] = ..., count: _Optional[int] = ..., primary: _Optional[str] = ..., servers: _Optional[_Iterable[_Union[ShardStatus, _Mapping]]] = ...) -> None: ...

class Problem(_message.Message):
    __slots__ = ("kind", "text", "workers", "severity", "seconds", "fix")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    FIX_FIELD_NUMBER: _ClassVar[int]
    kind: str
    text: str
    workers: _containers.RepeatedScalarFieldContainer[str]
    severity: ProblemSeverity
    seconds: float
    fix: str
    def __init__(self, kind: _Optional[str] = ..., text: _Optional[str] = ..., workers: _Optional[_Iterable[str]] = ..., severity: _Optional[_Union[ProblemSeverity, str]] = ..., seconds: _Optional[float] = ..., fix: _Optional[str] = ...) -> None: ...

class RunMeans(_message.Message):
    __slots__ = ("commits", "staleness_mean", "mean_pi", "blocked_fraction", "clamped_fraction")
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_MEAN_FIELD_NUMBER: _ClassVar[int]
    MEAN_PI_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_FRACTION_FIELD_NUMBER: _ClassVar[int]
    CLAMPED_FRACTION_FIELD_NUMBER: _ClassVar[int]
    commits: int
    staleness_mean: float
    mean_pi: float
    blocked_fraction: float
    clamped_fraction: float
    def __init__(self, commits: _Optional[int] = ..., staleness_mean: _Optional[float] = ..., mean_pi: _Optional[float] = ..., blocked_fraction: _Optional[float] = ..., clamped_fraction: _Optional[float] = ...) -> None: ...

class RunStatus(_message.Message):
    __slots__ = ("server_version", "version", "run_state", "settings", "run_seconds", "uptime_seconds", "parameter_count", "tensor_count", "layout_digest", "commits", "commits_per_second", "next_eta", "loss", "staleness_mean", "mean_pi", "blocked_fraction", "jain_index", "workers", "queue", "memory", "checkpoint", "last_evaluation", "best_evaluation", "commits_of_process", "staleness", "wait", "clamped_fraction", "wait_p50_seconds", "wait_p99_seconds", "shards", "means", "seconds_left", "missing_workers", "problems", "rule", "run_name", "run_id")
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_STATE_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    RUN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_COUNT_FIELD_NUMBER: _ClassVar[int]
    TENSOR_COUNT_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    COMMITS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    NEXT_ETA_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_MEAN_FIELD_NUMBER: _ClassVar[int]
    MEAN_PI_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_FRACTION_FIELD_NUMBER: _ClassVar[int]
    JAIN_INDEX_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    LAST_EVALUATION_FIELD_NUMBER: _ClassVar[int]
    BEST_EVALUATION_FIELD_NUMBER: _ClassVar[int]
    COMMITS_OF_PROCESS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    CLAMPED_FRACTION_FIELD_NUMBER: _ClassVar[int]
    WAIT_P50_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAIT_P99_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    MEANS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    MISSING_WORKERS_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    RUN_NAME_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    server_version: str
    version: _transfer_pb2.Version
    run_state: _run_pb2.RunState
    settings: _run_pb2.RunSettings
    run_seconds: float
    uptime_seconds: float
    parameter_count: int
    tensor_count: int
    layout_digest: bytes
    commits: int
    commits_per_second: float
    next_eta: float
    loss: float
    staleness_mean: float
    mean_pi: float
    blocked_fraction: float
    jain_index: float
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    queue: QueueStatus
    memory: MemoryStatus
    checkpoint: CheckpointStatus
    last_evaluation: Evaluation
    best_evaluation: Evaluation
    commits_of_process: int
    staleness: Histogram
    wait: Histogram
    clamped_fraction: float
    wait_p50_seconds: float
    wait_p99_seconds: float
    shards: ShardsStatus
    means: RunMeans
    seconds_left: float
    missing_workers: int
    problems: _containers.RepeatedCompositeFieldContainer[Problem]
    rule: str
    run_name: str
    run_id: str
    def __init__(self, server_version: _Optional[str] = ..., version: _Optional[_Union[_transfer_pb2.Version, _Mapping]] = ..., run_state: _Optional[_Union[_run_pb2.RunState, str]] = ..., settings: _Optional[_Union[_run_pb2.RunSettings, _Mapping]] = ..., run_seconds: _Optional[float] = ..., uptime_seconds: _Optional[float] = ..., parameter_count: _Optional[int] = ..., tensor_count: _Optional[int] = ..., layout_digest: _Optional[bytes] = ..., commits: _Optional[int] = ..., commits_per_second: _Optional[float] = ..., next_eta: _Optional[float] = ..., loss: _Optional[float] = ..., staleness_mean: _Optional[float] = ..., mean_pi: _Optional[float] = ..., blocked_fraction: _Optional[float] = ..., jain_index: _Optional[float] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., queue: _Optional[_Union[QueueStatus, _Mapping]] = ..., memory: _Optional[_Union[MemoryStatus, _Mapping]] = ..., checkpoint: _Optional[_Union[CheckpointStatus, _Mapping]] = ..., last_evaluation: _Optional[_Union[Evaluation, _Mapping]] = ..., best_evaluation: _Optional[_Union[Evaluation, _Mapping]] = ..., commits_of_process: _Optional[int] = ..., staleness: _Optional[_Union[Histogram, _Mapping]] = ..., wait: _Optional[_Union[Histogram, _Mapping]] = ..., clamped_fraction: _Optional[float] = ..., wait_p50_seconds: _Optional[float] = ..., wait_p99_seconds: _Optional[float] = ..., shards: _Optional[_Union[ShardsStatus, _Mapping]] = ..., means: _Optional[_Union[RunMeans, _Mapping]] = ..., seconds_left: _Optional[float] = ..., missing_workers: _Optional[int] = ..., problems: _Optional[_Iterable[_Union[Problem, _Mapping]]] = ..., rule: _Optional[str] = ..., run_name: _Optional[str] = ..., run_id: _Optional[str] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: RunStatus
    def __init__(self, status: _Optional[_Union[RunStatus, _Mapping]] = ...) -> None: ...

class WatchStatusRequest(_message.Message):
    __slots__ = ("interval_seconds", "stay")
    INTERVAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STAY_FIELD_NUMBER: _ClassVar[int]
    interval_seconds: float
    stay: bool
    def __init__(self, interval_seconds: _Optional[float] = ..., stay: bool = ...) -> None: ...

class WatchStatusResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: RunStatus
    def __init__(self, status: _Optional[_Union[RunStatus, _Mapping]] = ...) -> None: ...
