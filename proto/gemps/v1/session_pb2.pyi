from gemps.v1 import layout_pb2 as _layout_pb2
from gemps.v1 import run_pb2 as _run_pb2
from gemps.v1 import transfer_pb2 as _transfer_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JoinRequest(_message.Message):
    __slots__ = ("session_id", "worker_name", "host_id", "layout", "features", "delta_wire_types", "parameter_wire_types", "steps_per_epoch", "recipe", "agent", "device", "host_name", "engine", "run")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_NAME_FIELD_NUMBER: _ClassVar[int]
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    DELTA_WIRE_TYPES_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_WIRE_TYPES_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    RECIPE_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    worker_name: str
    host_id: str
    layout: _layout_pb2.Layout
    features: _containers.RepeatedScalarFieldContainer[str]
    delta_wire_types: _containers.RepeatedScalarFieldContainer[_transfer_pb2.WireType]
    parameter_wire_types: _containers.RepeatedScalarFieldContainer[_transfer_pb2.WireType]
    steps_per_epoch: int
    recipe: _run_pb2.Recipe
    agent: str
    device: str
    host_name: str
    engine: str
    run: str
    def __init__(self, session_id: _Optional[bytes] = ..., worker_name: _Optional[str] = ..., host_id: _Optional[str] = ..., layout: _Optional[_Union[_layout_pb2.Layout, _Mapping]] = ..., features: _Optional[_Iterable[str]] = ..., delta_wire_types: _Optional[_Iterable[_Union[_transfer_pb2.WireType, str]]] = ..., parameter_wire_types: _Optional[_Iterable[_Union[_transfer_pb2.WireType, str]]] = ..., steps_per_epoch: _Optional[int] = ..., recipe: _Optional[_Union[_run_pb2.Recipe, _Mapping]] = ..., agent: _Optional[str] = ..., device: _Optional[str] = ..., host_name: _Optional[str] = ..., engine: _Optional[str] = ..., run: _Optional[str] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("incarnation", "settings", "features", "run_state", "rank", "host_rank", "delta_wire_type", "parameter_wire_type", "chunk_bytes", "last_applied_sequence", "has_parameters", "layout_digest", "next_eta", "progress", "session_timeout_seconds", "server_version", "shards", "lane_port", "port", "shared_memory_socket", "changed_frozen", "run_name", "run_id", "commits")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    RUN_STATE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_RANK_FIELD_NUMBER: _ClassVar[int]
    DELTA_WIRE_TYPE_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_WIRE_TYPE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAST_APPLIED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    HAS_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    NEXT_ETA_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    LANE_PORT_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_SOCKET_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FROZEN_FIELD_NUMBER: _ClassVar[int]
    RUN_NAME_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    settings: _run_pb2.RunSettings
    features: _containers.RepeatedScalarFieldContainer[str]
    run_state: _run_pb2.RunState
    rank: int
    host_rank: int
    delta_wire_type: _transfer_pb2.WireType
    parameter_wire_type: _transfer_pb2.WireType
    chunk_bytes: int
    last_applied_sequence: int
    has_parameters: bool
    layout_digest: bytes
    next_eta: float
    progress: float
    session_timeout_seconds: float
    server_version: str
    shards: _containers.RepeatedScalarFieldContainer[str]
    lane_port: int
    port: int
    shared_memory_socket: str
    changed_frozen: _containers.RepeatedScalarFieldContainer[int]
    run_name: str
    run_id: str
    commits: int
    def __init__(self, incarnation: _Optional[int] = ..., settings: _Optional[_Union[_run_pb2.RunSettings, _Mapping]] = ..., features: _Optional[_Iterable[str]] = ..., run_state: _Optional[_Union[_run_pb2.RunState, str]] = ..., rank: _Optional[int] = ..., host_rank: _Optional[int] = ..., delta_wire_type: _Optional[_Union[_transfer_pb2.WireType, str]] = ..., parameter_wire_type: _Optional[_Union[_transfer_pb2.WireType, str]] = ..., chunk_bytes: _Optional[int] = ..., last_applied_sequence: _Optional[int] = ..., has_parameters: bool = ..., layout_digest: _Optional[bytes] = ..., next_eta: _Optional[float] = ..., progress: _Optional[float] = ..., session_timeout_seconds: _Optional[float] = ..., server_version: _Optional[str] = ..., shards: _Optional[_Iterable[str]] = ..., lane_port: _Optional[int] = ..., port: _Optional[int] = ..., shared_memory_socket: _Optional[str] = ..., changed_frozen: _Optional[_Iterable[int]] = ..., run_name: _Optional[str] = ..., run_id: _Optional[str] = ..., commits: _Optional[int] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("session_id", "batches")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    batches: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session_id: _Optional[bytes] = ..., batches: _Optional[_Iterable[int]] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("incarnation", "run_state", "last_applied_sequence", "next_eta")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RUN_STATE_FIELD_NUMBER: _ClassVar[int]
    LAST_APPLIED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    NEXT_ETA_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    run_state: _run_pb2.RunState
    last_applied_sequence: int
    next_eta: float
    def __init__(self, incarnation: _Optional[int] = ..., run_state: _Optional[_Union[_run_pb2.RunState, str]] = ..., last_applied_sequence: _Optional[int] = ..., next_eta: _Optional[float] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("session_id", "reason")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    reason: str
    def __init__(self, session_id: _Optional[bytes] = ..., reason: _Optional[str] = ...) -> None: ...

class LeaveResponse(_message.Message):
    __slots__ = ("run_state", "last_applied_sequence")
    RUN_STATE_FIELD_NUMBER: _ClassVar[int]
    LAST_APPLIED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    run_state: _run_pb2.RunState
    last_applied_sequence: int
    def __init__(self, run_state: _Optional[_Union[_run_pb2.RunState, str]] = ..., last_applied_sequence: _Optional[int] = ...) -> None: ...
