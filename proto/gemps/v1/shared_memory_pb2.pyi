from gemps.v1 import errors_pb2 as _errors_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SharedMemoryRequest(_message.Message):
    __slots__ = ("session_id", "shard")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    shard: int
    def __init__(self, session_id: _Optional[bytes] = ..., shard: _Optional[int] = ...) -> None: ...

class SharedMemoryRegion(_message.Message):
    __slots__ = ("region", "size_bytes", "payload_offset", "payload_bytes")
    REGION_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    region: int
    size_bytes: int
    payload_offset: int
    payload_bytes: int
    def __init__(self, region: _Optional[int] = ..., size_bytes: _Optional[int] = ..., payload_offset: _Optional[int] = ..., payload_bytes: _Optional[int] = ...) -> None: ...

class SharedMemoryResponse(_message.Message):
    __slots__ = ("delta", "snapshots", "refused", "message")
    DELTA_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    delta: SharedMemoryRegion
    snapshots: _containers.RepeatedCompositeFieldContainer[SharedMemoryRegion]
    refused: _errors_pb2.ErrorReason
    message: str
    def __init__(self, delta: _Optional[_Union[SharedMemoryRegion, _Mapping]] = ..., snapshots: _Optional[_Iterable[_Union[SharedMemoryRegion, _Mapping]]] = ..., refused: _Optional[_Union[_errors_pb2.ErrorReason, str]] = ..., message: _Optional[str] = ...) -> None: ...
