from gemps.v1 import layout_pb2 as _layout_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WireType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WIRE_TYPE_UNSPECIFIED: _ClassVar[WireType]
    WIRE_TYPE_FLOAT32: _ClassVar[WireType]
    WIRE_TYPE_BFLOAT16: _ClassVar[WireType]
    WIRE_TYPE_SHARED_MEMORY: _ClassVar[WireType]
    WIRE_TYPE_INT4_BLOCK: _ClassVar[WireType]
    WIRE_TYPE_SPARSE_BLOCK: _ClassVar[WireType]
WIRE_TYPE_UNSPECIFIED: WireType
WIRE_TYPE_FLOAT32: WireType
WIRE_TYPE_BFLOAT16: WireType
WIRE_TYPE_SHARED_MEMORY: WireType
WIRE_TYPE_INT4_BLOCK: WireType
WIRE_TYPE_SPARSE_BLOCK: WireType

class Version(_message.Message):
    __slots__ = ("incarnation", "clock")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    clock: int
    def __init__(self, incarnation: _Optional[int] = ..., clock: _Optional[int] = ...) -> None: ...

class BufferSelection(_message.Message):
    __slots__ = ("runs",)
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, runs: _Optional[_Iterable[int]] = ...) -> None: ...

class Footer(_message.Message):
    __slots__ = ("crc32c",)
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    crc32c: int
    def __init__(self, crc32c: _Optional[int] = ...) -> None: ...

class ParametersHeader(_message.Message):
    __slots__ = ("version", "wire_type", "byte_count", "layout_digest", "base_version", "buffers", "shared_memory", "layout", "adapter", "shards")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WIRE_TYPE_FIELD_NUMBER: _ClassVar[int]
    BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    version: Version
    wire_type: WireType
    byte_count: int
    layout_digest: bytes
    base_version: Version
    buffers: BufferSelection
    shared_memory: SharedMemoryHandle
    layout: _layout_pb2.Layout
    adapter: bytes
    shards: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[_Union[Version, _Mapping]] = ..., wire_type: _Optional[_Union[WireType, str]] = ..., byte_count: _Optional[int] = ..., layout_digest: _Optional[bytes] = ..., base_version: _Optional[_Union[Version, _Mapping]] = ..., buffers: _Optional[_Union[BufferSelection, _Mapping]] = ..., shared_memory: _Optional[_Union[SharedMemoryHandle, _Mapping]] = ..., layout: _Optional[_Union[_layout_pb2.Layout, _Mapping]] = ..., adapter: _Optional[bytes] = ..., shards: _Optional[_Iterable[str]] = ...) -> None: ...

class SharedMemoryHandle(_message.Message):
    __slots__ = ("region", "offset", "byte_count")
    REGION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    region: int
    offset: int
    byte_count: int
    def __init__(self, region: _Optional[int] = ..., offset: _Optional[int] = ..., byte_count: _Optional[int] = ...) -> None: ...
