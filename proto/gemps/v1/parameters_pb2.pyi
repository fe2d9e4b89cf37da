from gemps.v1 import run_pb2 as _run_pb2
from gemps.v1 import transfer_pb2 as _transfer_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class InitializeOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INITIALIZE_OUTCOME_UNSPECIFIED: _ClassVar[InitializeOutcome]
    INITIALIZE_OUTCOME_ACCEPTED: _ClassVar[InitializeOutcome]
    INITIALIZE_OUTCOME_ALREADY_INITIALIZED: _ClassVar[InitializeOutcome]
INITIALIZE_OUTCOME_UNSPECIFIED: InitializeOutcome
INITIALIZE_OUTCOME_ACCEPTED: InitializeOutcome
INITIALIZE_OUTCOME_ALREADY_INITIALIZED: InitializeOutcome

class InitializeHeader(_message.Message):
    __slots__ = ("session_id", "byte_count", "adapter")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    byte_count: int
    adapter: bytes
    def __init__(self, session_id: _Optional[bytes] = ..., byte_count: _Optional[int] = ..., adapter: _Optional[bytes] = ...) -> None: ...

class InitializeRequest(_message.Message):
    __slots__ = ("header", "footer", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FOOTER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: InitializeHeader
    footer: _transfer_pb2.Footer
    chunk: bytes
    def __init__(self, header: _Optional[_Union[InitializeHeader, _Mapping]] = ..., footer: _Optional[_Union[_transfer_pb2.Footer, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class InitializeResponse(_message.Message):
    __slots__ = ("outcome", "version")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    outcome: InitializeOutcome
    version: _transfer_pb2.Version
    def __init__(self, outcome: _Optional[_Union[InitializeOutcome, str]] = ..., version: _Optional[_Union[_transfer_pb2.Version, _Mapping]] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("session_id", "known_version", "resume_version", "resume_offset", "wire_type", "with_layout", "clock")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    KNOWN_VERSION_FIELD_NUMBER: _ClassVar[int]
    RESUME_VERSION_FIELD_NUMBER: _ClassVar[int]
    RESUME_OFFSET_FIELD_NUMBER: _ClassVar[int]
    WIRE_TYPE_FIELD_NUMBER: _ClassVar[int]
    WITH_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    known_version: _transfer_pb2.Version
    resume_version: _transfer_pb2.Version
    resume_offset: int
    wire_type: _transfer_pb2.WireType
    with_layout: bool
    clock: int
    def __init__(self, session_id: _Optional[bytes] = ..., known_version: _Optional[_Union[_transfer_pb2.Version, _Mapping]] = ..., resume_version: _Optional[_Union[_transfer_pb2.Version, _Mapping]] = ..., resume_offset: _Optional[int] = ..., wire_type: _Optional[_Union[_transfer_pb2.WireType, str]] = ..., with_layout: bool = ..., clock: _Optional[int] = ...) -> None: ...

class PullResponse(_message.Message):
    __slots__ = ("not_modified", "header", "footer", "chunk")
    NOT_MODIFIED_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FOOTER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    not_modified: NotModified
    header: _transfer_pb2.ParametersHeader
    footer: _transfer_pb2.Footer
    chunk: bytes
    def __init__(self, not_modified: _Optional[_Union[NotModified, _Mapping]] = ..., header: _Optional[_Union[_transfer_pb2.ParametersHeader, _Mapping]] = ..., footer: _Optional[_Union[_transfer_pb2.Footer, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class NotModified(_message.Message):
    __slots__ = ("version", "run_state")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_STATE_FIELD_NUMBER: _ClassVar[int]
    version: _transfer_pb2.Version
    run_state: _run_pb2.RunState
    def __init__(self, version: _Optional[_Union[_transfer_pb2.Version, _Mapping]] = ..., run_state: _Optional[_Union[_run_pb2.RunState, str]] = ...) -> None: ...
