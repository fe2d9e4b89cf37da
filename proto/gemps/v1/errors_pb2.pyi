from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_MALFORMED: _ClassVar[ErrorReason]
    ERROR_REASON_OUT_OF_ORDER: _ClassVar[ErrorReason]
    ERROR_REASON_BAD_CHUNK: _ClassVar[ErrorReason]
    ERROR_REASON_SIZE_MISMATCH: _ClassVar[ErrorReason]
    ERROR_REASON_WIRE_TYPE: _ClassVar[ErrorReason]
    ERROR_REASON_BAD_VALUE: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_LAYOUT: _ClassVar[ErrorReason]
    ERROR_REASON_CHECKSUM: _ClassVar[ErrorReason]
    ERROR_REASON_LAYOUT_MISMATCH: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_SESSION: _ClassVar[ErrorReason]
    ERROR_REASON_EXPIRED_SESSION: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_INCARNATION: _ClassVar[ErrorReason]
    ERROR_REASON_STALE_BASE: _ClassVar[ErrorReason]
    ERROR_REASON_SEQUENCE_GAP: _ClassVar[ErrorReason]
    ERROR_REASON_RUN_FINISHED: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_INITIALIZED: _ClassVar[ErrorReason]
    ERROR_REASON_SEQUENCE_REUSED: _ClassVar[ErrorReason]
    ERROR_REASON_MEMORY: _ClassVar[ErrorReason]
    ERROR_REASON_WAITING_ROOM: _ClassVar[ErrorReason]
    ERROR_REASON_TOO_MANY: _ClassVar[ErrorReason]
    ERROR_REASON_STORAGE_FULL: _ClassVar[ErrorReason]
    ERROR_REASON_STALLED: _ClassVar[ErrorReason]
    ERROR_REASON_NEWER_SESSION: _ClassVar[ErrorReason]
    ERROR_REASON_NEWER_CALL: _ClassVar[ErrorReason]
    ERROR_REASON_STARTING: _ClassVar[ErrorReason]
    ERROR_REASON_DRAINING: _ClassVar[ErrorReason]
    ERROR_REASON_CREDENTIALS: _ClassVar[ErrorReason]
    ERROR_REASON_ROLE: _ClassVar[ErrorReason]
    ERROR_REASON_INTERNAL: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_OFFERED: _ClassVar[ErrorReason]
    ERROR_REASON_NO_SHARED_MEMORY: _ClassVar[ErrorReason]
    ERROR_REASON_FEATURE: _ClassVar[ErrorReason]
    ERROR_REASON_RECIPE: _ClassVar[ErrorReason]
    ERROR_REASON_VERSION: _ClassVar[ErrorReason]
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_MALFORMED: ErrorReason
ERROR_REASON_OUT_OF_ORDER: ErrorReason
ERROR_REASON_BAD_CHUNK: ErrorReason
ERROR_REASON_SIZE_MISMATCH: ErrorReason
ERROR_REASON_WIRE_TYPE: ErrorReason
ERROR_REASON_BAD_VALUE: ErrorReason
ERROR_REASON_INVALID_LAYOUT: ErrorReason
ERROR_REASON_CHECKSUM: ErrorReason
ERROR_REASON_LAYOUT_MISMATCH: ErrorReason
ERROR_REASON_UNKNOWN_SESSION: ErrorReason
ERROR_REASON_EXPIRED_SESSION: ErrorReason
ERROR_REASON_UNKNOWN_INCARNATION: ErrorReason
ERROR_REASON_STALE_BASE: ErrorReason
ERROR_REASON_SEQUENCE_GAP: ErrorReason
ERROR_REASON_RUN_FINISHED: ErrorReason
ERROR_REASON_NOT_INITIALIZED: ErrorReason
ERROR_REASON_SEQUENCE_REUSED: ErrorReason
ERROR_REASON_MEMORY: ErrorReason
ERROR_REASON_WAITING_ROOM: ErrorReason
ERROR_REASON_TOO_MANY: ErrorReason
ERROR_REASON_STORAGE_FULL: ErrorReason
ERROR_REASON_STALLED: ErrorReason
ERROR_REASON_NEWER_SESSION: ErrorReason
ERROR_REASON_NEWER_CALL: ErrorReason
ERROR_REASON_STARTING: ErrorReason
ERROR_REASON_DRAINING: ErrorReason
ERROR_REASON_CREDENTIALS: ErrorReason
ERROR_REASON_ROLE: ErrorReason
ERROR_REASON_INTERNAL: ErrorReason
ERROR_REASON_NOT_OFFERED: ErrorReason
ERROR_REASON_NO_SHARED_MEMORY: ErrorReason
ERROR_REASON_FEATURE: ErrorReason
ERROR_REASON_RECIPE: ErrorReason
ERROR_REASON_VERSION: ErrorReason
