from gemps.v1 import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HistoryInterval(_message.Message):
    __slots__ = ("begins", "ends", "clock", "commits", "loss", "staleness_mean", "staleness_max", "wait_mean_seconds", "mean_pi", "blocked_fraction", "clamped_fraction", "proxy_norm", "drift_norm", "update_norm", "jain_index", "workers", "queue_length", "anonymous_bytes", "local_steps")
    BEGINS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_MEAN_FIELD_NUMBER: _ClassVar[int]
    STALENESS_MAX_FIELD_NUMBER: _ClassVar[int]
    WAIT_MEAN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MEAN_PI_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_FRACTION_FIELD_NUMBER: _ClassVar[int]
    CLAMPED_FRACTION_FIELD_NUMBER: _ClassVar[int]
    PROXY_NORM_FIELD_NUMBER: _ClassVar[int]
    DRIFT_NORM_FIELD_NUMBER: _ClassVar[int]
    UPDATE_NORM_FIELD_NUMBER: _ClassVar[int]
    JAIN_INDEX_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ANONYMOUS_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOCAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    begins: float
    ends: float
    clock: int
    commits: int
    loss: float
    staleness_mean: float
    staleness_max: int
    wait_mean_seconds: float
    mean_pi: float
    blocked_fraction: float
    clamped_fraction: float
    proxy_norm: float
    drift_norm: float
    update_norm: float
    jain_index: float
    workers: int
    queue_length: int
    anonymous_bytes: int
    local_steps: int
    def __init__(self, begins: _Optional[float] = ..., ends: _Optional[float] = ..., clock: _Optional[int] = ..., commits: _Optional[int] = ..., loss: _Optional[float] = ..., staleness_mean: _Optional[float] = ..., staleness_max: _Optional[int] = ..., wait_mean_seconds: _Optional[float] = ..., mean_pi: _Optional[float] = ..., blocked_fraction: _Optional[float] = ..., clamped_fraction: _Optional[float] = ..., proxy_norm: _Optional[float] = ..., drift_norm: _Optional[float] = ..., update_norm: _Optional[float] = ..., jain_index: _Optional[float] = ..., workers: _Optional[int] = ..., queue_length: _Optional[int] = ..., anonymous_bytes: _Optional[int] = ..., local_steps: _Optional[int] = ...) -> None: ...

class TensorColumn(_message.Message):
    __slots__ = ("run_seconds", "clock", "samples", "mean_pi", "median_pi")
    RUN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    MEAN_PI_FIELD_NUMBER: _ClassVar[int]
    MEDIAN_PI_FIELD_NUMBER: _ClassVar[int]
    run_seconds: float
    clock: int
    samples: int
    mean_pi: _containers.RepeatedScalarFieldContainer[float]
    median_pi: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, run_seconds: _Optional[float] = ..., clock: _Optional[int] = ..., samples: _Optional[int] = ..., mean_pi: _Optional[_Iterable[float]] = ..., median_pi: _Optional[_Iterable[float]] = ...) -> None: ...

class TensorHistory(_message.Message):
    __slots__ = ("names", "columns")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    columns: _containers.RepeatedCompositeFieldContainer[TensorColumn]
    def __init__(self, names: _Optional[_Iterable[str]] = ..., columns: _Optional[_Iterable[_Union[TensorColumn, _Mapping]]] = ...) -> None: ...

class GetHistoryRequest(_message.Message):
    __slots__ = ("after_seconds",)
    AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    after_seconds: float
    def __init__(self, after_seconds: _Optional[float] = ...) -> None: ...

class GetHistoryResponse(_message.Message):
    __slots__ = ("intervals", "evaluations", "tensors", "generation")
    INTERVALS_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    intervals: _containers.RepeatedCompositeFieldContainer[HistoryInterval]
    evaluations: _containers.RepeatedCompositeFieldContainer[_status_pb2.Evaluation]
    tensors: TensorHistory
    generation: int
    def __init__(self, intervals: _Optional[_Iterable[_Union[HistoryInterval, _Mapping]]] = ..., evaluations: _Optional[_Iterable[_Union[_status_pb2.Evaluation, _Mapping]]] = ..., tensors: _Optional[_Union[TensorHistory, _Mapping]] = ..., generation: _Optional[int] = ...) -> None: ...
