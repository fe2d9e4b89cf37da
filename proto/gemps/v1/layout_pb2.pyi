from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ElementType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ELEMENT_TYPE_UNSPECIFIED: _ClassVar[ElementType]
    ELEMENT_TYPE_FLOAT32: _ClassVar[ElementType]
    ELEMENT_TYPE_FLOAT64: _ClassVar[ElementType]
    ELEMENT_TYPE_FLOAT16: _ClassVar[ElementType]
    ELEMENT_TYPE_BFLOAT16: _ClassVar[ElementType]
    ELEMENT_TYPE_INT8: _ClassVar[ElementType]
    ELEMENT_TYPE_INT16: _ClassVar[ElementType]
    ELEMENT_TYPE_INT32: _ClassVar[ElementType]
    ELEMENT_TYPE_INT64: _ClassVar[ElementType]
    ELEMENT_TYPE_UINT8: _ClassVar[ElementType]
    ELEMENT_TYPE_BOOL: _ClassVar[ElementType]
    ELEMENT_TYPE_OTHER: _ClassVar[ElementType]

class TensorKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TENSOR_KIND_UNSPECIFIED: _ClassVar[TensorKind]
    TENSOR_KIND_PARAMETER: _ClassVar[TensorKind]
    TENSOR_KIND_BUFFER: _ClassVar[TensorKind]
    TENSOR_KIND_FROZEN: _ClassVar[TensorKind]

class TensorRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TENSOR_ROLE_UNSPECIFIED: _ClassVar[TensorRole]
    TENSOR_ROLE_EMBEDDING: _ClassVar[TensorRole]
ELEMENT_TYPE_UNSPECIFIED: ElementType
ELEMENT_TYPE_FLOAT32: ElementType
ELEMENT_TYPE_FLOAT64: ElementType
ELEMENT_TYPE_FLOAT16: ElementType
ELEMENT_TYPE_BFLOAT16: ElementType
ELEMENT_TYPE_INT8: ElementType
ELEMENT_TYPE_INT16: ElementType
ELEMENT_TYPE_INT32: ElementType
ELEMENT_TYPE_INT64: ElementType
ELEMENT_TYPE_UINT8: ElementType
ELEMENT_TYPE_BOOL: ElementType
ELEMENT_TYPE_OTHER: ElementType
TENSOR_KIND_UNSPECIFIED: TensorKind
TENSOR_KIND_PARAMETER: TensorKind
TENSOR_KIND_BUFFER: TensorKind
TENSOR_KIND_FROZEN: TensorKind
TENSOR_ROLE_UNSPECIFIED: TensorRole
TENSOR_ROLE_EMBEDDING: TensorRole

class TensorSpec(_message.Message):
    __slots__ = ("name", "shape", "element_type", "kind", "aliases", "role", "sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    element_type: ElementType
    kind: TensorKind
    aliases: _containers.RepeatedScalarFieldContainer[str]
    role: TensorRole
    sha256: bytes
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., element_type: _Optional[_Union[ElementType, str]] = ..., kind: _Optional[_Union[TensorKind, str]] = ..., aliases: _Optional[_Iterable[str]] = ..., role: _Optional[_Union[TensorRole, str]] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class Layout(_message.Message):
    __slots__ = ("tensors",)
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    tensors: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    def __init__(self, tensors: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ...) -> None: ...
