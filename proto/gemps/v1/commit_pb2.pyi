from gemps.v1 import run_pb2 as _run_pb2
from gemps.v1 import transfer_pb2 as _transfer_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CommitHeader(_message.Message):
    __slots__ = ("session_id", "sequence", "base_version", "wire_type", "byte_count", "loss", "samples", "scale", "payload_crc32c", "local_steps", "leaves", "optimizer_steps", "buffers", "eta", "decays", "commit_id", "shared_memory")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    WIRE_TYPE_FIELD_NUMBER: _ClassVar[int]
    BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_CRC32C_FIELD_NUMBER: _ClassVar[int]
    LOCAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_STEPS_FIELD_NUMBER: _ClassVar[int]
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    ETA_FIELD_NUMBER: _ClassVar[int]
    DECAYS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_ID_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    sequence: int
    base_version: _transfer_pb2.Version
    wire_type: _transfer_pb2.WireType
    byte_count: int
    loss: float
    samples: int
    scale: float
    payload_crc32c: int
    local_steps: int
    leaves: bool
    optimizer_steps: int
    buffers: _transfer_pb2.BufferSelection
    eta: float
    decays: _containers.RepeatedScalarFieldContainer[float]
    commit_id: int
    shared_memory: _transfer_pb2.SharedMemoryHandle
    def __init__(self, session_id: _Optional[bytes] = ..., sequence: _Optional[int] = ..., base_version: _Optional[_Union[_transfer_pb2.Version, _Mapping]] = ..., wire_type: _Optional[_Union[_transfer_pb2.WireType, str]] = ..., byte_count: _Optional[int] = ..., loss: _Optional[float] = ..., samples: _Optional[int] = ..., scale: _Optional[float] = ..., payload_crc32c: _Optional[int] = ..., local_steps: _Optional[int] = ..., leaves: bool = ..., optimizer_steps: _Optional[int] = ..., buffers: _Optional[_Union[_transfer_pb2.BufferSelection, _Mapping]] = ..., eta: _Optional[float] = ..., decays: _Optional[_Iterable[float]] = ..., commit_id: _Optional[int] = ..., shared_memory: _Optional[_Union[_transfer_pb2.SharedMemoryHandle, _Mapping]] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("header", "footer", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FOOTER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: CommitHeader
    footer: _transfer_pb2.Footer
    chunk: bytes
    def __init__(self, header: _Optional[_Union[CommitHeader, _Mapping]] = ..., footer: _Optional[_Union[_transfer_pb2.Footer, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class Proceed(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class CommitStatistics(_message.Message):
    __slots__ = ("mean_pi", "blocked_fraction", "clamped_fraction", "proxy_norm", "drift_norm", "delta_norm", "update_norm")
    MEAN_PI_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_FRACTION_FIELD_NUMBER: _ClassVar[int]
    CLAMPED_FRACTION_FIELD_NUMBER: _ClassVar[int]
    PROXY_NORM_FIELD_NUMBER: _ClassVar[int]
    DRIFT_NORM_FIELD_NUMBER: _ClassVar[int]
    DELTA_NORM_FIELD_NUMBER: _ClassVar[int]
    UPDATE_NORM_FIELD_NUMBER: _ClassVar[int]
    mean_pi: float
    blocked_fraction: float
    clamped_fraction: float
    proxy_norm: float
    drift_norm: float
    delta_norm: float
    update_norm: float
    def __init__(self, mean_pi: _Optional[float] = ..., blocked_fraction: _Optional[float] = ..., clamped_fraction: _Optional[float] = ..., proxy_norm: _Optional[float] = ..., drift_norm: _Optional[float] = ..., delta_norm: _Optional[float] = ..., update_norm: _Optional[float] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("sequence", "version", "duplicate", "staleness", "statistics", "run_state", "next_eta", "relative_speed", "progress", "withheld")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    RUN_STATE_FIELD_NUMBER: _ClassVar[int]
    NEXT_ETA_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_SPEED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    version: _transfer_pb2.Version
    duplicate: bool
    staleness: int
    statistics: CommitStatistics
    run_state: _run_pb2.RunState
    next_eta: float
    relative_speed: float
    progress: float
    withheld: bool
    def __init__(self, sequence: _Optional[int] = ..., version: _Optional[_Union[_transfer_pb2.Version, _Mapping]] = ..., duplicate: bool = ..., staleness: _Optional[int] = ..., statistics: _Optional[_Union[CommitStatistics, _Mapping]] = ..., run_state: _Optional[_Union[_run_pb2.RunState, str]] = ..., next_eta: _Optional[float] = ..., relative_speed: _Optional[float] = ..., progress: _Optional[float] = ..., withheld: bool = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ("proceed", "verdict", "parameters", "footer", "chunk")
    PROCEED_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    FOOTER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    proceed: Proceed
    verdict: Verdict
    parameters: _transfer_pb2.ParametersHeader
    footer: _transfer_pb2.Footer
    chunk: bytes
    def __init__(self, proceed: _Optional[_Union[Proceed, _Mapping]] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., parameters: _Optional[_Union[_transfer_pb2.ParametersHeader, _Mapping]] = ..., footer: _Optional[_Union[_transfer_pb2.Footer, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...
