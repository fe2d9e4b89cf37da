from gemps.v1 import run_pb2 as _run_pb2
from gemps.v1 import transfer_pb2 as _transfer_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ControlAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONTROL_ACTION_UNSPECIFIED: _ClassVar[ControlAction]
    CONTROL_ACTION_FINISH: _ClassVar[ControlAction]
    CONTROL_ACTION_CHECKPOINT: _ClassVar[ControlAction]
    CONTROL_ACTION_END_SESSION: _ClassVar[ControlAction]
    CONTROL_ACTION_END_QUARANTINE: _ClassVar[ControlAction]
CONTROL_ACTION_UNSPECIFIED: ControlAction
CONTROL_ACTION_FINISH: ControlAction
CONTROL_ACTION_CHECKPOINT: ControlAction
CONTROL_ACTION_END_SESSION: ControlAction
CONTROL_ACTION_END_QUARANTINE: ControlAction

class ReportEvaluationRequest(_message.Message):
    __slots__ = ("version", "loss", "accuracy", "samples", "evaluator", "bits_per_character")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    EVALUATOR_FIELD_NUMBER: _ClassVar[int]
    BITS_PER_CHARACTER_FIELD_NUMBER: _ClassVar[int]
    version: _transfer_pb2.Version
    loss: float
    accuracy: float
    samples: int
    evaluator: str
    bits_per_character: float
    def __init__(self, version: _Optional[_Union[_transfer_pb2.Version, _Mapping]] = ..., loss: _Optional[float] = ..., accuracy: _Optional[float] = ..., samples: _Optional[int] = ..., evaluator: _Optional[str] = ..., bits_per_character: _Optional[float] = ...) -> None: ...

class ReportEvaluationResponse(_message.Message):
    __slots__ = ("run_state", "best")
    RUN_STATE_FIELD_NUMBER: _ClassVar[int]
    BEST_FIELD_NUMBER: _ClassVar[int]
    run_state: _run_pb2.RunState
    best: bool
    def __init__(self, run_state: _Optional[_Union[_run_pb2.RunState, str]] = ..., best: bool = ...) -> None: ...

class ControlRequest(_message.Message):
    __slots__ = ("action", "reason", "resumable", "worker", "comes_back")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RESUMABLE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    COMES_BACK_FIELD_NUMBER: _ClassVar[int]
    action: ControlAction
    reason: str
    resumable: bool
    worker: str
    comes_back: bool
    def __init__(self, action: _Optional[_Union[ControlAction, str]] = ..., reason: _Optional[str] = ..., resumable: bool = ..., worker: _Optional[str] = ..., comes_back: bool = ...) -> None: ...

class ControlResponse(_message.Message):
    __slots__ = ("version", "run_state", "checkpoint_path", "session_ended", "quarantine_ended")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_STATE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_PATH_FIELD_NUMBER: _ClassVar[int]
    SESSION_ENDED_FIELD_NUMBER: _ClassVar[int]
    QUARANTINE_ENDED_FIELD_NUMBER: _ClassVar[int]
    version: _transfer_pb2.Version
    run_state: _run_pb2.RunState
    checkpoint_path: str
    session_ended: bool
    quarantine_ended: bool
    def __init__(self, version: _Optional[_Union[_transfer_pb2.Version, _Mapping]] = ..., run_state: _Optional[_Union[_run_pb2.RunState, str]] = ..., checkpoint_path: _Optional[str] = ..., session_ended: bool = ..., quarantine_ended: bool = ...) -> None: ...
